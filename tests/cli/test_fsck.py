"""``isomerge fsck`` as people and scripts meet it: a table, JSON, exit codes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path


def test_sound_then_damaged(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Exit code 0, then 1 with the file that changed; -v lists all files and inputs."""
    out, to = tmp_path / "out", tmp_path / "fsck.json"
    assert isomerge("merge", stored("gpt2", 0), stored("gpt2", 5), "-o", out, "-q").code == 0
    said = isomerge("fsck", out, "--json", to)
    assert (said.code, said.err) == (0, "")
    assert "Sound: " in said.out
    assert "Inputs, 4 files: 4 unchanged since." in said.out
    assert json.loads(to.read_text())["sound"] is True
    every = isomerge("fsck", out, "-v").out
    assert all(name in every for name in ("model.safetensors", "README.md", "unchanged", "crc32"))
    whole = (out / "isomerge.json").read_text()
    (out / "isomerge.json").write_text("".join(line for line in whole.splitlines(True) if '  "digest"' not in line))
    said = isomerge("fsck", out)
    assert said.code == 1
    assert "isomerge.json: it is not the report that was written" in " ".join(said.out.split())
    assert ", 1 problem." in said.out
    (out / "isomerge.json").write_text(whole)
    os.truncate(out / "README.md", 3)
    said = isomerge("fsck", out, "--json", to)
    assert said.code == 1
    assert "Damaged: " in said.out
    assert "README.md: it has 3 bytes" in said.out
    assert json.loads(to.read_text())["problems"][0]["file"] == "README.md"
    assert isomerge("fsck", out, "-q").out == ""


def test_nothing_to_check(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A folder that isomerge did not write, and one that is not there."""
    for folder, word in ((stored("gpt2", 0), "isomerge.json"), (tmp_path / "no", "no such folder")):
        said = isomerge("fsck", folder)
        assert said.code == 2
        assert word in said.err
        assert len(said.err.splitlines()) == 1
