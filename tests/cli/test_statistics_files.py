"""Matching by files of statistics: the bytes of --data --no-functional, and a note that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

NOTE = "as by --data with --no-functional"


def test_files_and_data(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """What docs/lab/activations.md says of files, and what it says of the difference."""
    a, b = stored("llama", 0), stored("llama", 5)
    data = tmp_path / "x.safetensors"
    save_file({"input_ids": torch.randint(1, 60, (6, 9), generator=torch.Generator().manual_seed(0))}, data)
    files = [tmp_path / "a.st", tmp_path / "b.st"]
    for model, file in zip((a, b), files, strict=True):
        assert isomerge("stats", model, "--data", data, "-o", file).code == 0
    from_files = ["--stats-anchor", files[0], "--stats-src", files[1]]
    cases = {
        "files": (from_files, True),
        "plain": ([*from_files, "--no-functional"], False),
        "data": (["--data", data, "--no-functional"], False),
        "functional": (["--data", data], False),
    }
    written = {}
    for name, (options, noted) in cases.items():
        said = isomerge("align", b, "--onto", a, "--spaces", "all", "-o", tmp_path / name, *options)
        assert said.code == 0, said.err
        assert (NOTE in said.out) == noted
        written[name] = (tmp_path / name / "model.safetensors").read_bytes()
    assert written["files"] == written["plain"] == written["data"]
    assert written["functional"] != written["files"]
    said = isomerge("align", b, "--onto", a, "-o", tmp_path / "x", *from_files, "--dry-run")
    assert NOTE in said.out
    said = isomerge("merge", a, b, "-o", tmp_path / "merged", *from_files)
    assert NOTE in said.out
