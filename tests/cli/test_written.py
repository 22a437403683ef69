"""What a command writes is none of the files that it reads, by no name; and it is written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import isomerge as library
from depth import more
from isomerge.errors import IsomergeError
from solve.disguises import single

COMPUTES = (
    "align",
    "merge",
    "diff",
    "stats",
    "generate",
    "discover",
    "fingerprint",
    "barrier",
    "inspect",
    "apply",
)


@pytest.fixture
def pair(copies: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two models, a data file; and whatever computes ends the test."""
    (tmp_path / "texts.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n')

    def computed(*_: object, **__: object) -> None:
        raise AssertionError("this was to be refused before")

    for name in COMPUTES:
        monkeypatch.setattr(library, name, computed)
    return copies("gpt2")


def link(kind: str, file: Path, folder: Path) -> Path:
    """The file itself, or another name for it."""
    if kind == "itself":
        return file
    (os.symlink if kind == "symlink" else os.link)(file, folder / "other.name")
    return folder / "other.name"


@pytest.mark.parametrize("kind", ["itself", "symlink", "hard link"])
@pytest.mark.parametrize("option", ["--save-alignment", "--json"])
def test_weights_are_no_place_for_an_output(
    option: str, kind: str, pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path
) -> None:
    """One sentence before anything is computed, whatever leads to the weights of either model."""
    before = {model: (model / "model.safetensors").read_bytes() for model in pair}
    for number, model in enumerate(pair):
        folder = tmp_path / str(number)
        folder.mkdir()
        victim = link(kind, model / "model.safetensors", folder)
        for dry in ([], ["--dry-run"]):
            said = isomerge("align", pair[1], "--onto", pair[0], "-o", tmp_path / "out", option, victim, *dry)
            assert said.code == 2, said
            assert said.err.startswith(f"isomerge: {option} {victim} ")
            assert len(said.err.splitlines()) == 1
            assert "choose another file" in said.err
    assert {model: (model / "model.safetensors").read_bytes() for model in pair} == before
    assert not (tmp_path / "out").exists()


COMMANDS = {
    "stats": lambda a, b, w: ["stats", a, "--data", w / "texts.jsonl", "--overwrite", "-o"],
    "generate": lambda a, b, w: ["generate", a, b, "--overwrite", "-o"],
    "discover": lambda a, b, w: ["discover", a, "--overwrite", "-o"],
    "fingerprint": lambda a, b, w: ["fingerprint", a, b, "-o"],
    "report": lambda a, b, w: ["report", a, "-o"],
    "barrier": lambda a, b, w: ["barrier", a, b, "--data", w / "texts.jsonl", "--png"],
    "diff": lambda a, b, w: ["diff", a, f"{b}", "--json"],
    "inspect": lambda a, b, w: ["inspect", a, "--json"],
    "merge": lambda a, b, w: ["merge", b, a, "--data", w / "texts.jsonl", "-o", w / "out", "--json"],
    "recipe": lambda a, b, w: ["merge", recipe(w, b, a), w / "out", "--json"],
}


def recipe(folder: Path, *models: Path) -> Path:
    """A recipe that names the models."""
    rows = "".join(f"  - model: {model}\n" for model in models)
    (folder / "r.yml").write_text(f"merge_method: linear\nmodels:\n{rows}parameters:\n  weight: 0.5\n")
    return folder / "r.yml"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_of_any_command_replaces_an_input(
    command: str, pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path
) -> None:
    """Weights, configs, and data where there are some."""
    words = COMMANDS[command](*pair, tmp_path)
    victims = [pair[0] / "model.safetensors", pair[0] / "config.json", pair[0] / "generation_config.json"]
    victims += [tmp_path / "texts.jsonl"] if tmp_path / "texts.jsonl" in words else []
    victims += [tmp_path / "r.yml"] if command == "recipe" else []
    for victim in victims:
        before = victim.read_bytes()
        said = isomerge(*words, victim)
        assert (said.code, victim.read_bytes()) == (2, before), said
        assert f"{words[-1] if words[-1] != '-o' else '--out'} {victim} is read" in said.err


def test_two_outputs_are_two_files(pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path) -> None:
    """And none lies where a folder is written."""
    to = tmp_path / "x.json"
    said = isomerge("fingerprint", *pair, "-o", to, "--json", tmp_path / "." / "x.json")
    assert (said.code, to.exists()) == (2, False)
    assert "are one file" in said.err
    (tmp_path / "out").mkdir()
    said = isomerge("merge", *pair, "-o", tmp_path / "out", "--json", tmp_path / "out" / "config.json")
    assert said.code == 2
    assert "lies in the folder that is written" in said.err


def test_what_is_no_input_may_be_replaced(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Reports are replaced, also beside a model's files; and written into what cannot be replaced."""
    model = Path(shutil.copytree(stored("gpt2", 0), tmp_path / "a"))
    for to in (tmp_path / "r.json", model / "r.json"):
        for _ in range(2):
            assert isomerge("inspect", model, "-q", "--json", to).code == 0
        assert json.loads(to.read_text())["command"] == "inspect"
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert isomerge("inspect", model, "-q", "--json", pipe).code == 0
    assert json.loads(os.read(reader, 1 << 20))["command"] == "inspect"
    assert isomerge("inspect", model, "-q", "--json", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


def no_room(*_: object) -> None:
    """A disk that is full when the file is to be on it."""
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("command", ["inspect", "fingerprint", *more("discover")])
def test_a_full_disk_keeps_the_old_file(
    command: str, stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written beside and renamed: half a report never takes the place of one."""
    monkeypatch.setattr("isomerge.files.flush", no_room)
    (to := tmp_path / "x").write_text("precious")
    option = {"inspect": ["--json"], "discover": ["--overwrite", "-o"], "fingerprint": ["-o"]}[command]
    said = isomerge(command, stored("gpt2", 0), "-q", *option, to)
    assert said.code == 2
    assert "the disk is full while writing" in said.err
    assert to.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [to]


def test_pictures_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that fails half way leaves the one that was there."""
    from isomerge.evidence.pictures import write_picture

    monkeypatch.setattr("isomerge.files.flush", no_room)
    (to := tmp_path / "x.png").write_text("precious")
    with pytest.raises(IsomergeError, match="the disk is full"):
        write_picture(lambda figure: None, (1, 1), to)
    assert to.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [to]


def test_python_saves_no_alignment_over_weights(tmp_path: Path) -> None:
    """Nor over any tensors but those of an alignment, whose model nobody remembers."""
    model = single("gpt2", tmp_path / "a")
    alignment, _ = library.align(model, onto=model)
    before = (model / "model.safetensors").read_bytes()
    with pytest.raises(IsomergeError, match="no alignment, and would be replaced"):
        alignment.save(model / "model.safetensors")
    assert (model / "model.safetensors").read_bytes() == before
    alignment.save(tmp_path / "x.safetensors")
    alignment.save(tmp_path / "x.safetensors")


def test_python_writes_over_no_input(tmp_path: Path) -> None:
    """The functions refuse what the commands do."""
    model = single("gpt2", tmp_path / "a")
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n')
    config = model / "config.json"
    for write in (
        lambda to: library.fingerprint(model, out=to),
        lambda to: library.discover(model, out=to, overwrite=True),
        lambda to: library.stats(model, data=tmp_path / "x.jsonl", out=to, overwrite=True),
    ):
        for victim in (config, model / "model.safetensors"):
            before = victim.read_bytes()
            with pytest.raises(IsomergeError, match="is read, and would be replaced"):
                write(victim)
            assert victim.read_bytes() == before


def test_overwrite_makes_no_folder_of_a_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The weights of a model were replaced by the folder of the output, where they were named as it."""
    from isomerge.api.moving import align

    weights = pair[0] / "model.safetensors"
    before = weights.read_bytes()
    with pytest.raises(IsomergeError, match="is read, and would be replaced"):
        align(pair[1], onto=pair[0], out=weights, overwrite=True)
    assert weights.read_bytes() == before


def test_no_file_can_be_written_there(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Told before a fingerprint is made."""
    said = isomerge("fingerprint", stored("gpt2", 0), "-o", tmp_path)
    assert (said.code, said.out) == (2, "")
    assert f"--out {tmp_path} is a folder" in said.err
