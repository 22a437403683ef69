"""Files of parts: what is written is what is read."""

from __future__ import annotations

from pathlib import Path

import torch

from isomerge.solve.unfinished_run import load_parts, save_parts


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    """Elements of a whole stack are in every unit's part, and a column is part of a matrix."""
    x = torch.arange(12.0).reshape(3, 4)
    parts = {"in a": {"heads": x}, "in b": {"heads": x, "column": x[:, 1]}}
    save_parts(tmp_path / "x", parts, {"units": ["a", "b"]})
    kept = load_parts(tmp_path / "x")
    assert kept is not None
    assert kept[1] == {"units": ["a", "b"]}
    for part, found in parts.items():
        assert kept[0][part].keys() == found.keys()
        assert all(torch.equal(kept[0][part][key], tensor) for key, tensor in found.items())
