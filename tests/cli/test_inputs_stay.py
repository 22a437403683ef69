"""No command writes over what it reads, whatever leads there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import isomerge as library
from isomerge.errors import IsomergeError

COMMANDS: dict[str, Callable[[Path, Path, Path], list[object]]] = {
    "align": lambda a, b, _: ["align", b, "--onto", a],
    "merge": lambda a, b, _: ["merge", b, a],
    "merge as stored": lambda a, b, _: ["merge", b, a, "--no-align"],
    "base": lambda a, b, _: ["merge", b, b, "--method", "task_arithmetic", "--base-model", a],
    "canon": lambda a, b, _: ["canon", a],
    "apply": lambda a, b, w: ["apply", w / "patch.safetensors", a],
    "extract-lora": lambda a, b, _: ["extract-lora", b, a],
    "restore-task": lambda a, b, w: ["restore-task", b, a, w / "patch.safetensors"],
    "recipe": lambda a, b, w: ["merge", recipe(w, a, b)],
}


def recipe(folder: Path, *models: Path) -> Path:
    """A recipe that names the models."""
    rows = "".join(f"  - model: {model}\n" for model in models)
    (folder / "r.yml").write_text(f"merge_method: linear\nmodels:\n{rows}parameters:\n  weight: 0.5\n")
    return folder / "r.yml"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_destroys_an_input(
    name: str, copies: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its name, by a link, by dots, from inside or from outside; nothing is computed, and nothing
    changes."""
    from isomerge.models.recognised import Model

    a, b = copies("gpt2")
    (tmp_path / "patch.safetensors").write_bytes(b"none")
    (tmp_path / "link").symlink_to(a)
    (tmp_path / "outer").mkdir()
    shutil.copytree(a, inner := tmp_path / "outer" / "a")
    shutil.copy(a / "config.json", tmp_path / "outer")  # else it is no checkpoint, which says another sentence
    words = {model: COMMANDS[name](model, b, tmp_path) for model in (a, tmp_path / "link", inner)}
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    def read(*_: object, **__: object) -> None:
        raise AssertionError("this was to be refused before")

    monkeypatch.setattr(Model, "read", read)
    for model, out in [
        (a, a),
        (a, tmp_path / "link"),
        (tmp_path / "link", a),
        (a, b / ".." / "a"),
        (a, a / "new"),
        (inner, inner.parent),
    ]:
        if name == "recipe":
            recipe(tmp_path, model, b)
        told = isomerge(*words[model], "-o", out, "--overwrite")
        assert (told.code, told.out) == (2, ""), told
        assert "choose another output folder" in told.err
        assert len(told.err.splitlines()) == 1
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".yml"}
    assert after == {file: found for file, found in before.items() if file.suffix != ".yml"}


def test_what_is_read_beside_models_stays(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A recipe, its template, a spec, statistics and an alignment in the folder that would be replaced."""
    a, b = copies("gpt2")
    out = tmp_path / "out"
    shutil.copytree(a, out)
    (out / "r.yml").write_text(f"merge_method: linear\nmodels: [{{model: {a}}}, {{model: {b}}}]\n")
    (out / "s.spec").write_text("none")
    (out / "s.safetensors").write_text("none")
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    for words in (
        ["merge", out / "r.yml"],
        ["merge", a, b, "--spec", out / "s.spec"],
        ["merge", a, b, "--stats", out / "s.safetensors", "--stats", out / "s.safetensors"],
        ["align", a, "--onto", b, "--stats-src", out / "s.safetensors", "--stats-anchor", out / "s.safetensors"],
        ["apply", out / "s.safetensors", a],
    ):
        told = isomerge(*words, "-o", out, "--overwrite")
        assert told.code == 2
        assert "is read" in told.err
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_an_adapters_base_stays(copies: Callable, tmp_path: Path) -> None:
    """Which no argument names, and in Python as well."""
    a, b = copies("gpt2")
    library.extract_lora(b, a, out=tmp_path / "adapter", rank=2)
    before = {file: file.read_bytes() for file in a.rglob("*") if file.is_file()}
    for out in (a, tmp_path / "adapter", a / "x"):
        with pytest.raises(IsomergeError, match="choose another output folder"):
            library.canon(tmp_path / "adapter", out=out, overwrite=True)
    assert {file: file.read_bytes() for file in a.rglob("*") if file.is_file()} == before
