"""An alignment is replayed in any dtype, whatever the one that it was made in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import isomerge
from toys import relative, save_toy, tensors

TOYS = ("llama", "gpt2-untied")
KINDS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-6}
"""What weights may be apart from those in float32, of the largest."""


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", TOYS)
def test_turned_streams_are_written_in_any_dtype(name: str, dtype: str, tmp_path: Path) -> None:
    """Gains that half precision rounds are taken up by what reads them, so that the stream can be turned back; in
    float64 all is computed in it. Without either, six of six were refused."""
    for folder, seed in (("one", 0), ("two", 1)):
        save_toy(name, tmp_path / folder, seed=seed, dtype=torch.float32)
    patch, _ = isomerge.align(
        tmp_path / "two", onto=tmp_path / "one", out=tmp_path / "out", spaces="all", align=True
    )
    how = {"model": tmp_path / "two", "dtype": dtype}
    report = isomerge.apply(tmp_path / "out" / "alignment.safetensors", out=tmp_path / "again", **how)
    assert report["rounding"]["error"] <= report["rounding"]["tolerance"] / 4
    wanted, written = tensors(tmp_path / "out"), tensors(tmp_path / "again")
    assert {str(x.dtype) for x in written.values()} == {f"torch.{dtype}"}
    assert all(relative(written[n].double(), x.double()) <= KINDS[dtype] for n, x in wanted.items() if x.any())
    assert isomerge.verify(tmp_path / "two", tmp_path / "again")["same"]
    back = tmp_path / "back"
    isomerge.apply(tmp_path / "again" / "alignment.safetensors", model=tmp_path / "again", inverse=True, out=back)
    own = tensors(tmp_path / "two")
    assert all(
        relative(tensors(back)[n].double(), x.double()) <= 4 * KINDS[dtype] for n, x in own.items() if x.any()
    )
    assert patch
