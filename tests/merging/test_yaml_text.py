"""YAML from files that nobody vouches for: every kind of scalar, merge keys that multiply, nesting, aliases;
quickly, in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isomerge.checkpoint.yaml_text import plain_value, read_yaml
from isomerge.errors import IsomergeError
from isomerge.fusion.method_parameters import of_models
from isomerge.fusion.registry import methods


def multiplied(levels: int, times: int) -> str:
    """Mappings that merge the one before, many times."""
    first = "m0: &m0 {a: 1, b: 2, c: 3}\n"
    rest = (f"m{k + 1}: &m{k + 1}\n  <<: [{', '.join([f'*m{k}'] * times)}]\n  own{k}: 1\n" for k in range(levels))
    return first + "".join(rest)


REFUSED = {
    "one large mapping merged by many": (
        "b: &b {" + ", ".join(f"k{k}: 1" for k in range(1500)) + "}\nl:\n" + "- {<<: *b}\n" * 70,
        "merged by `<<`",
    ),
    "a mapping that merges itself": ("a: &a\n  <<: *a\n", "contains itself"),
    "aliases that multiply": (
        "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"x{k + 1}: &x{k + 1} [{', '.join([f'*x{k}'] * 9)}]\n" for k in range(9)),
        "once its aliases are written out",
    ),
    "brackets in brackets": ("[" * 50_000, "nested too deeply"),
    "braces in braces": ("{a: " * 20_000, "nested too deeply"),
    "binary data": ("w: !!binary aGk=\n", "line 1 has a value of kind binary"),
    "a set": ("w: !!set {a, b}\n", "kind set"),
    "an ordered mapping": ("w: !!omap [a: 1]\n", "kind omap"),
    "a kind of one's own": ("w: !mine 1\n", "kind !mine"),
    "a number that Python cannot write": ("w: 0x" + "f" * 9000 + "\n", "a number of 9002 characters"),
    "a date that is none": ("w: 2020-13-45\n", "not valid YAML"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "has the key `a` once more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    """One sentence that names the file."""
    text, words = REFUSED[name]
    (tmp_path / "r.yml").write_text(text)
    with pytest.raises(IsomergeError) as caught:
        read_yaml(tmp_path / "r.yml")
    assert words in str(caught.value)
    assert str(tmp_path / "r.yml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merge_keys_work(tmp_path: Path) -> None:
    """What a mapping has itself goes before; a few levels are fine, also with many keys."""
    (tmp_path / "r.yml").write_text(
        "base: &b {x: 1, y: 2}\nmore: &m\n  <<: *b\n  y: 3\nlast:\n  <<: [*m, *b]\n  z: 4\n"
    )
    found = read_yaml(tmp_path / "r.yml")
    assert found["more"] == {"x": 1, "y": 3}
    assert found["last"] == {"x": 1, "y": 3, "z": 4}
    (tmp_path / "r.yml").write_text(multiplied(7, 30))
    assert read_yaml(tmp_path / "r.yml")["m7"] == {"a": 1, "b": 2, "c": 3, **{f"own{k}": 1 for k in range(7)}}


# what stands for a number: only YAML's own numbers, and texts that say one (as mergekit reads them)
SCALARS: dict[str, Any] = {
    "0.5": 0.5, "1": 1, "1e-3": 1e-3, "1.0e-3": 1e-3, "+.5": 0.5, "'0.5'": 0.5, "1_000": 1000, "0x10": 16,
    "yes": None, "true": None, "null": None, "~": None, "1:30": None, "1:30.5": None, "2024-01-01": None,
    "2024-01-01T10:00:00Z": None, ".nan": None, ".inf": None, "-.inf": None, "half": None, "'1:30'": None, "{a: 1}": None,
    "1e400": None, "'0x10'": None, "''": None, "1,5": None,
}  # fmt: skip


@pytest.mark.parametrize("text", SCALARS)
@pytest.mark.parametrize(
    ("method", "option"), [("ties", "density"), ("task_arithmetic", "lambda"), ("linear", "weight"), ("slerp", "t")]
)
def test_numbers_are_numbers(text: str, method: str, option: str) -> None:
    """Every kind of scalar where a number is asked for, of one model or of all."""
    chosen = methods()[method]
    count = chosen.models[0] if chosen.models[1] is not None else 2
    value = plain_value(text)
    wanted = SCALARS[text]
    if option == "density" and wanted is not None and not 0 <= wanted <= 1:
        return
    if wanted is None:
        with pytest.raises(IsomergeError):
            of_models(chosen, count, given={option: value})
    else:
        found = of_models(chosen, count, given={option: value})
        assert found.at(chosen, "x", None, depth=1)[option] in (wanted, [wanted] * count)


@pytest.mark.parametrize("value", [b"hi", bytearray(b"hi"), {1, 2}, (b"a", b"b"), 1j, object()])
def test_what_python_may_give(value: Any) -> None:
    """Bytes are no lists of numbers."""
    with pytest.raises(IsomergeError):
        of_models(methods()["linear"], 2, given={"weight": value})


def test_pairs_of_escapes_are_one_letter(tmp_path: Path) -> None:
    """As JSON writes what lies above U+FFFF, in keys and in values; half of a pair is no text."""
    file = tmp_path / "r.yml"
    file.write_text(r'{"\ud83d\ude00": "a \ud83d\ude00 \u00e9", "plain": "é"}')
    assert read_yaml(file) == {"\U0001f600": "a \U0001f600 é", "plain": "é"}
    file.write_text(r'{"a": "\ud83d"}')
    with pytest.raises(IsomergeError, match="line 1 has half of a pair of escapes"):
        read_yaml(file)
