"""Checksums of whole files from those of their parts, whatever the order in which these are read and written."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.checkpoint.checksums import Checksum, file_checksum, joined, weights_checksum
from isomerge.checkpoint.header import read_header
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.writer import CheckpointWriter
from isomerge.errors import IsomergeError
from raw_files import CONFIG, one_sentence, planned, sharded, single, written

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "empty": torch.zeros(0, 3),
    "b": torch.arange(5, dtype=torch.int16),
    "c": torch.full((7,), 0.5, dtype=torch.bfloat16),
}


def crc_of(path: Path) -> Checksum:
    """By the library, of the file as it lies there."""
    raw = path.read_bytes()
    return Checksum(len(raw), zlib.crc32(raw))


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_the_sum_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    """For any cut, empty parts included."""
    whole = b"".join(parts)
    assert joined(map(Checksum.of, parts)) == Checksum(len(whole), zlib.crc32(whole))


@given(st.integers(0, 2**22), st.binary(min_size=1, max_size=40))
def test_long_parts(zeros: int, tail: bytes) -> None:
    """Lengths of all bit patterns, against the library's own continuation."""
    head = Checksum.of(bytes(zeros))
    assert (head + Checksum.of(tail)).crc32 == zlib.crc32(tail, head.crc32)


def test_lengths_beyond_memory() -> None:
    """Joining is associative for parts of terabytes, which nobody reads for a test."""
    a, b, c = Checksum(3 << 40, 0x12345678), Checksum((1 << 45) + 7, 0x9ABCDEF0), Checksum(5, 0x0BADF00D)
    assert (a + b) + c == a + (b + c)
    assert (a + b) != (b + a)


@pytest.mark.parametrize("order", [list(TENSORS), list(reversed(TENSORS))])
@pytest.mark.parametrize("out_shard_size", [10**9, 20])
def test_written_files(tmp_path: Path, order: list[str], out_shard_size: int) -> None:
    """The writer's checksums are those of the files on the disk, in whatever order tensors come."""
    told: dict[str, Checksum] = {}

    def last(sums: dict[str, Checksum]) -> dict[str, bytes]:
        told.update(sums)
        return {"report.json": b"{}"}

    with CheckpointWriter(tmp_path / "m", planned(TENSORS), key="k", out_shard_size=out_shard_size) as writer:
        for name in order:
            writer.write(name, TENSORS[name])
        source = tmp_path / "vocab.txt"
        source.write_bytes(b"one\ntwo\n")
        out = writer.finish({**CONFIG, "vocab.txt": source}, last=last)
    assert {p.name for p in out.iterdir()} == {*told, "report.json"}
    assert {name: crc_of(out / name) for name in told} == told
    assert len(told) == (3 if out_shard_size == 10**9 else 2 + 1 + len(list(out.glob("model-*"))))


def test_written_files_after_a_resume(tmp_path: Path) -> None:
    """What the disk lost in between is not blessed: a unit whose bytes are not those of the journal is done
    again."""
    with CheckpointWriter(tmp_path / "m", planned(TENSORS), key="k") as writer:
        for unit, name in (("first", "c"), ("second", "a")):
            writer.write(name, TENSORS[name])
            writer.commit(unit, {})
    path = tmp_path / ".m.partial" / "model" / "model.safetensors"
    info = read_header(path)[0]["a"]
    with path.open("r+b") as stream:
        stream.seek(info.offset)
        stream.write(b"\x01")
    told: dict[str, Checksum] = {}
    seen: list[tuple[str, int, int]] = []
    with CheckpointWriter(
        tmp_path / "m", planned(TENSORS), key="k", observer=lambda *what: seen.append(what)
    ) as writer:
        assert writer.resumed
        assert writer.done == {"first": {}}
        with pytest.raises(IsomergeError, match="3 planned"):
            writer.finish(CONFIG)
        for name in ("empty", "b", "a"):
            writer.write(name, TENSORS[name])
        writer.finish(CONFIG, last=lambda sums: told.update(sums) or {})
    sizes = [TENSORS[name].nbytes for name in ("c", "a")]
    assert [found[1:] for found in seen] == [(0, sum(sizes)), (sizes[0], sum(sizes))]
    whole = crc_of(written(tmp_path / "whole", TENSORS) / "model.safetensors")
    assert told["model.safetensors"] == whole == crc_of(tmp_path / "m" / "model.safetensors")


def test_read_files(tmp_path: Path) -> None:
    """Of a checkpoint in shards: some tensors read, one twice, one mapped, the others not at all."""
    halves = ({n: TENSORS[n] for n in ("a", "empty")}, {n: TENSORS[n] for n in ("b", "c")})
    folder = sharded(tmp_path / "m", {f"model-{k}.safetensors": half for k, half in enumerate(halves)})
    checkpoint = open_checkpoint(folder)
    for name, mapped in (("a", True), ("a", False), ("c", False)):
        assert torch.equal(checkpoint.read(name, mapped=mapped), TENSORS[name])
    found = checkpoint.checksums()
    assert {path.name for path in found} == {"model-0.safetensors", "model-1.safetensors"}
    assert found == {path: crc_of(path) for path in found}


def test_known_tensors_are_not_read_again(tmp_path: Path) -> None:
    """A planted checksum shows in the result, so the bytes were not looked at."""
    path = single(tmp_path / "m", TENSORS) / "model.safetensors"
    info = read_header(path)[0]["a"]
    assert weights_checksum(path, {}) == crc_of(path)
    assert weights_checksum(path, {(path, info.offset): Checksum(info.nbytes, 1)}) != crc_of(path)


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    """A checksum of half old and half new bytes is never told."""
    folder = single(tmp_path / "m", TENSORS)
    checkpoint = open_checkpoint(folder)
    checkpoint.read("a")
    os.utime(folder / "model.safetensors", ns=(1, 1))
    with pytest.raises(IsomergeError, match="changed after it was opened"):
        checkpoint.checksums()


def test_only_regular_files(tmp_path: Path) -> None:
    """A pipe is refused and not waited for; so is a folder."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(IsomergeError) as caught:
            file_checksum(path)
        one_sentence(caught.value, path, "regular file")
