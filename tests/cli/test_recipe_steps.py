"""``isomerge merge RECIPE OUT`` with a recipe of several steps, as mergekit-multi reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

import isomerge as library
from cli.test_bad_input import refuses
from isomerge.commands.step_merges import step_merges
from isomerge.options import OpeningOptions

STEPS = """
name: first
merge_method: linear
models: [{model: a}, {model: b}]
parameters: {weight: 0.5}
---
merge_method: linear
models: [{model: first, parameters: {weight: 0.75}}, {model: c, parameters: {weight: 0.25}}]
"""


@pytest.fixture
def here(stored: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three models and the recipe in the current folder."""
    for name, seed in (("a", 0), ("b", 5), ("c", 6)):
        (tmp_path / name).symlink_to(stored("gpt2", seed))
    (tmp_path / "r.yml").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(folder: str | Path) -> bytes:
    return (Path(folder) / "model.safetensors").read_bytes()


def test_steps_are_merges_one_after_the_other(here: Path, isomerge: Callable) -> None:
    """Each by its numbers; a second run keeps what is there, as long as it is what the recipe asks for."""
    said = isomerge("merge", "r.yml", "out", "--no-report", "--json", "x.json")
    assert said.code == 0, said.err
    a, b, c, first, out = (
        load_file(Path(x, "model.safetensors")) for x in ("a", "b", "c", "out.steps/first", "out")
    )
    for name, x in out.items():
        torch.testing.assert_close(first[name], (a[name] + b[name]) / 2)
        torch.testing.assert_close(x, 0.75 * first[name] + 0.25 * c[name])
    steps = json.loads(Path("x.json").read_text())["steps"]
    assert [(step["name"], step["kept"]) for step in steps] == [("first", False), (None, False)]
    assert {path.name for path in Path("out.steps").iterdir()} == {"first", "first.made-by.yml"}

    report = library.merge("r.yml", out="again", intermediate_dir="out.steps")
    assert [step["kept"] for step in report["steps"]] == [True, False]
    assert weights("again") == weights("out")
    Path("r.yml").write_text(STEPS.replace("weight: 0.5", "weight: [0.3]"))
    with pytest.raises(library.IsomergeError, match="first exists and is not an empty folder"):
        library.merge("r.yml", out="other", intermediate_dir="out.steps")
    seeded = step_merges("r.yml", "other", "out.steps", {"seed": 3}, OpeningOptions())
    assert [step.kept for step in seeded] == [False, False]


def test_a_plan_of_steps(here: Path, isomerge: Callable) -> None:
    """What can be planned; nothing is written. A live module comes out without folders."""
    before = sorted(here.iterdir())
    said = isomerge("merge", "r.yml", "out", "--dry-run")
    assert said.code == 0, said.err
    assert "step first:" in said.out
    assert "the step without a name: planned when first is written." in said.out
    module = library.merge("r.yml")
    assert [step["name"] for step in module.isomerge_report["steps"]] == ["first", None]
    assert sorted(here.iterdir()) == before


def test_what_is_refused_or_noted(here: Path, isomerge: Callable) -> None:
    """A wrong later step before the first is merged; folders that are one; an option without steps."""
    refuses(isomerge, here, "merge", "r.yml", "d/first", "-I", "d", words=["and another one's"])
    refuses(isomerge, here, "merge", "r.yml", words=["add -o OUT"])
    refuses(isomerge, here, "merge", "r.yml", "out", "--dry-run", "--json", "x.json", words=["leave --json out"])
    (here / "r.yml").write_text(STEPS.replace("linear\nmodels: [{model: first", "slurp\nmodels: [{model: first"))
    refuses(
        isomerge, here, "merge", "r.yml", "out", words=["r.yml (the step without a name): `merge_method` slurp"]
    )
    said = isomerge("merge", "a", "b", "-o", "out", "-I", "d", "--no-report", "--no-align")
    assert "note: --intermediate-dir is not used: one merge is asked for" in said.err


DAMAGE = {
    "missing": (lambda folder: (folder / "model.safetensors").unlink(), ""),
    "cut": (lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:999]), ""),
    "another architecture": (None, "different architectures (gpt2, llama)"),
    "another width": (None, "different shapes (ff is "),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("dry", [True, False])
def test_a_later_step_s_bad_model_is_told_before_the_first_step(
    kind: str, needs: bool, dry: bool, here: Path, stored: Callable, isomerge: Callable
) -> None:
    """Whether the step waits for another one or not, also by a dry run; nothing is written."""
    damage, words = DAMAGE[kind]
    (here / "c").unlink()
    if kind == "another width":
        config = tf.GPT2Config.from_pretrained(stored("gpt2", 6), n_inner=20)
        tf.GPT2LMHeadModel(config).save_pretrained(here / "c")
    else:
        shutil.copytree(stored("llama" if damage is None else "gpt2", 6), here / "c")
    if damage is not None:
        damage(here / "c")
    waiting, _, last = STEPS.partition("---")
    alone = f"name: second{last.replace('first', 'a')}"
    third = last.replace("{model: c", "{model: second")
    (here / "r.yml").write_text(STEPS if needs else f"{waiting}---\n{alone}---{third}")
    step = "the step without a name" if needs else "step second"
    refuses(
        isomerge, here, "merge", "r.yml", "out", *(["--dry-run"] if dry else []), words=[f"r.yml ({step}): ", words]
    )
