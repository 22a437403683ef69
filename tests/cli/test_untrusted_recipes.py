"""Recipes that nobody vouches for: bombs, code, what breaks parsers; `benchmarks.fuzz` found several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isomerge.checkpoint import yaml_text

ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 30))
YAML: dict[str, tuple[str, list[str]]] = {
    "aliases that explode": (ALIASES, ["aliases"]),
    "an alias of itself": ("models: &m\n- *m\nmerge_method: linear\n", ["itself"]),
    "a merge key of itself": ("a: &a\n  <<: *a\n", []),
    "deep flow": ("[" * 50_000, ["deep"]),
    "deep blocks": ("".join(" " * k + "a:\n" for k in range(600)), ["deep"]),
    "too long": ("x" * (yaml_text.MAX_BYTES + 1), ["longer than"]),
    "Python objects": ("models: !!python/object/apply:os.system [touch hacked]\n", ["not valid YAML"]),
    "a date that is none": ("a: 2020-99-99\n", ["not valid YAML"]),
    "a number of digits": ("a: " + "9" * 5000 + "\n", ["not valid YAML"]),
    "a base that is none": ("a: !!int 0o9\n", ["not valid YAML"]),
    "an unhashable key": ("? [a]\n: 1\n", ["not valid YAML"]),
    "no UTF-8": ("\udcff", ["cannot read"]),
    "control characters": ("a\x07b: 1", ["not valid YAML"]),
    "a key that steers terminals": ('"a\\eb\\nc": 1\nmodels: []\nmerge_method: linear\n', ["a\\x1bb\\nc"]),
}


@pytest.mark.parametrize("kind", YAML)
def test_yaml(kind: str, refuses: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes that are bombs, run code, or break the parser; the sentence names the file."""
    monkeypatch.chdir(tmp_path)
    text, words = YAML[kind]
    (tmp_path / "recipe.yml").write_bytes(text.encode("utf-8", "surrogateescape"))
    refuses("merge", tmp_path / "recipe.yml", tmp_path / "out", words=["recipe.yml", *words])
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("digits", [20, 400])
def test_whole_numbers_of_any_length(
    digits: int, stored: Callable, refuses: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 64 bits, and beyond all floating-point numbers."""
    monkeypatch.chdir(tmp_path)
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    parts = [f"models: [{{model: {a}}}, {{model: {b}}}]", f"base_model: {a}", "merge_method: ties"]
    (tmp_path / "recipe.yml").write_text("\n".join([*parts, f"parameters: {{lambda: {'9' * digits}}}\n"]))
    refuses("merge", "recipe.yml", "out", words=["recipe.yml", "lambda", "finite number"])


def test_weights_beyond_the_numbers_of_tensors(
    stored: Callable, refuses: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite in float64, which is what YAML has; the models are float32."""
    monkeypatch.chdir(tmp_path)
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    parts = [f"models: [{{model: {a}}}, {{model: {b}, parameters: {{weight: 1.0e+308}}}}]"]
    (tmp_path / "recipe.yml").write_text(
        "\n".join([*parts, f"base_model: {a}", "align: true", "merge_method: ties\n"])
    )
    refuses("merge", "recipe.yml", "out", words=["tensor", "range of numbers"])


def test_aliases_that_do_not_explode(tmp_path: Path) -> None:
    """Anchors are a part of YAML that recipes use."""
    path = tmp_path / "recipe.yml"
    path.write_text("p: &p {weight: [1, 2]}\nq: [*p, *p]\n")
    assert yaml_text.read_yaml(path)["q"] == [{"weight": [1, 2]}] * 2


@pytest.mark.parametrize("how", [["--dry-run"], []])
@pytest.mark.parametrize("key", ["data", "learn", "repair"])
def test_functions_as_data(
    key: str, how: list[str], stored: Callable, refuses: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe runs no code, in a dry run neither; the sentence says how to give a function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('hacked', 'w')\ndef examples(): return []\n")
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    text = f"models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\nalign: {{{key}: 'evil:examples'}}\n"
    (tmp_path / "recipe.yml").write_text(text)
    words = [f"recipe.yml: `align.{key}` is evil:examples", f"--{key} evil:examples on the command line"]
    refuses("merge", "recipe.yml", "out", *how, words=words)
