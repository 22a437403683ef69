"""What isomerge did not write it never deletes: files and folders of the user's under the names of unfinished
output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from isomerge.checkpoint.output_folder import MARK, PartialFolder
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError
from isomerge.files import whole_file, write_whole
from isomerge.lock import give_back, take

PLAN = [OutTensor("x", "F32", (2,))]


def theirs(path: Path, kind: str) -> None:
    """Something of the user's."""
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        for name in {"folder": ["notes"], "like ours": ["journal.jsonl"], "replaced": ["replaced"]}[kind]:
            (path / name).write_text("mine")


def seen(folder: Path) -> dict[str, str]:
    """All files and what they hold."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "like ours", "replaced"])
def test_unfinished_output_takes_nobody_s_place(kind: str, overwrite: bool, tmp_path: Path) -> None:
    """The run stops in one sentence, whatever the way in, and everything is as it was."""
    theirs(tmp_path / ".m.partial", kind)
    before = seen(tmp_path)
    with pytest.raises(IsomergeError, match=r"\.m\.partial is in the way.*rename or remove it") as caught:
        CheckpointWriter(tmp_path / "m", PLAN, key="k", overwrite=overwrite)
    assert "\n" not in str(caught.value)
    with pytest.raises(IsomergeError, match="in the way"):
        PartialFolder(tmp_path / "m", overwrite=overwrite)
    assert seen(tmp_path) == before
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nor_while_it_is_written(kind: str, tmp_path: Path) -> None:
    """Put there after the run has looked: neither begun over nor discarded."""
    partial = PartialFolder(tmp_path / "m", overwrite=False)
    theirs(tmp_path / ".m.partial", kind)
    before = seen(tmp_path)
    with pytest.raises(IsomergeError, match="in the way"):
        partial.begin()
    partial.discard()
    partial.release()
    assert {k: v for k, v in before.items() if "lock" not in k} == seen(tmp_path)


def test_ours_is_known_by_its_mark(tmp_path: Path) -> None:
    """An unfinished folder of ours is gone on with or begun anew, and removed at the end; an empty one loses
    nothing."""
    (tmp_path / ".m.partial").mkdir()
    for key in ("k", "k", "other"):
        with CheckpointWriter(tmp_path / "m", PLAN, key=key) as writer:
            assert (tmp_path / ".m.partial" / MARK).is_file()
            writer.write("x", torch.ones(2))
            writer.commit("u", {})
    with CheckpointWriter(tmp_path / "m", PLAN, key="other") as writer:
        assert writer.resumed
        writer.finish({"config.json": b"{}"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    assert not (tmp_path / "m" / MARK).exists()


def test_single_files(tmp_path: Path) -> None:
    """Their hidden names are given way to, and a lock file that holds something stays."""
    (tmp_path / ".report.json.partial").write_text("mine")
    (tmp_path / ".report.json.lock").write_text("mine, too")
    write_whole(tmp_path / "report.json", b"new")
    assert seen(tmp_path) == {
        "report.json": "new",
        ".report.json.partial": "mine",
        ".report.json.lock": "mine, too",
    }

    def fail() -> None:
        with whole_file(tmp_path / "report.json") as beside:
            beside.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert seen(tmp_path) == {
        "report.json": "new",
        ".report.json.partial": "mine",
        ".report.json.lock": "mine, too",
    }


def test_locks(tmp_path: Path) -> None:
    """An empty lock file, which is ours, goes; one that holds something is a lock as well, and stays."""
    for content in ("", "mine"):
        (tmp_path / "lock").write_text(content)
        held = take(tmp_path / "lock", wait=False)
        with pytest.raises(BlockingIOError):
            take(tmp_path / "lock", wait=False)
        give_back(tmp_path / "lock", held)
        assert (tmp_path / "lock").exists() == bool(content)
