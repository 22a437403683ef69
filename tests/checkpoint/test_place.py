"""Tensors that go to their file piece by piece: the same bytes and checksums as whole ones, and nothing counts too
early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from isomerge.checkpoint import tensor_place as place_module
from isomerge.checkpoint.tensor_place import TensorPlace
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError
from isomerge.passes import Pass
from isomerge.pieces import PIECE


def fill(place: TensorPlace, tensor: torch.Tensor) -> None:
    """What a merge method does, piece by piece."""
    Pass([tensor], torch.float32).run(lambda parts: parts[0], place)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([0, 1, 5, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE]), st.sampled_from(["F32", "BF16", "F16"]))
def test_same_file_as_in_one_go(tmp_path_factory: pytest.TempPathFactory, size: int, code: str) -> None:
    """Bytes and the file's checksum, at the edges of pieces."""
    folder = tmp_path_factory.mktemp("place")
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size))
    planned = [OutTensor("before", "F32", (3,)), OutTensor("x", code, (size,)), OutTensor("behind", "F32", (3,))]
    sums = {}
    for name in ("whole", "pieces"):
        with CheckpointWriter(folder / name, planned, key="k") as writer:
            writer.write("before", torch.ones(3))
            writer.write("behind", torch.full((3,), 2.0))
            place = writer.place("x")
            if name == "pieces":
                fill(place, tensor)
            writer.write("x", place.placed() if name == "pieces" else tensor.to(place.dtype))
            writer.commit("all", {})
            writer.finish({}, last=lambda found, name=name: sums.update({name: found}) or {})
    files = [(folder / name / "model.safetensors").read_bytes() for name in ("whole", "pieces")]
    assert files[0] == files[1]
    assert sums["whole"] == sums["pieces"]
    assert torch.equal(
        load_file(folder / "pieces" / "model.safetensors")["x"].float(), tensor.to(place.dtype).float()
    )


def test_nothing_counts_before_the_writer_has_it(tmp_path: Path) -> None:
    """A place that was filled is no tensor that was written; one that was half filled has nothing to give."""
    planned = [OutTensor("x", "F32", (2 * PIECE,))]
    with CheckpointWriter(tmp_path / "out", planned, key="k") as writer:
        place = writer.place("x")
        next(place.places())
        with pytest.raises(AssertionError, match="first"):
            place.placed()
        fill(place, torch.zeros(2 * PIECE))
        with pytest.raises(IsomergeError, match="were not written"):
            writer.finish({})
        with pytest.raises(IsomergeError, match="is not planned"):
            writer.place("y")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the sentence of all full disks, and what the method itself raises is not mistaken for one."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with CheckpointWriter(tmp_path / "out", [OutTensor("x", "F32", (4,))], key="k") as writer:
        place = writer.place("x")
        for _ in (room for room in place.places()):
            break  # closes its file
        monkeypatch.setattr(place_module, "write_from", full)
        with pytest.raises(IsomergeError, match="the disk is full"):
            fill(writer.place("x"), torch.zeros(4))
