"""The floor of an unaligned merge: the mean of two models by torch, with nothing around it.

    python -m benchmarks.performance.bare_loop ONE TWO OUT_FILE

Reads pages of both, sums them, widens pieces to float32, measures their distance, averages, looks for what is not
finite, writes and sums: what isomerge does to every byte, in two threads, without plan, names, journal or report;
and flushes at the end. A row of `benchmarks.performance.merging`.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from zlib_ng.zlib_ng import crc32

from isomerge.checkpoint.header import TensorInfo, read_header
from isomerge.checkpoint.mapped_files import map_private
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.models.peak_memory import map_large_blocks
from isomerge.pieces import PIECE

THREADS = 2


def tensors_of(folder: Path) -> dict[str, TensorInfo]:
    return {
        name: info for file in sorted(folder.glob("*.safetensors")) for name, info in read_header(file)[0].items()
    }


def pages(info: TensorInfo) -> tuple[torch.Tensor, ...]:
    """A tensor in pages of its file, in pieces."""
    fd = os.open(info.file, os.O_RDONLY)
    try:
        return torch.frombuffer(map_private(fd, info.offset, info.nbytes), dtype=torch.bfloat16).split(PIECE)
    finally:
        os.close(fd)


def mean_of(one: TensorInfo, two: TensorInfo, fd: int, offset: int) -> float:
    """Writes the mean of a pair of tensors; returns their squared distance."""
    rooms = [torch.empty(PIECE) for _ in range(3)]
    out, gap, sums = torch.empty(PIECE, dtype=torch.bfloat16), 0.0, [0, 0, 0]
    for a, b in zip(pages(one), pages(two), strict=True):
        wide_a, wide_b, apart = (room[: len(a)] for room in rooms)
        sums[0], sums[1] = crc32(content_of(a), sums[0]), crc32(content_of(b), sums[1])
        wide_a.copy_(a), wide_b.copy_(b)
        torch.sub(wide_a, wide_b, out=apart)
        gap += float(torch.dot(apart, apart)) + 0 * float(torch.dot(wide_a, wide_a))
        place = out[: len(a)]
        place.copy_(wide_a.mul_(0.5).add_(wide_b, alpha=0.5))
        if not float(place.sum()) < float("inf"):
            raise SystemExit("not finite")
        offset += os.pwrite(fd, content_of(place), offset)
        sums[2] = crc32(content_of(place), sums[2])
    return gap


def main() -> None:
    """Every tensor of both folders, by two threads of one thread of torch each."""
    one, two, out = sys.argv[1:]
    map_large_blocks()
    torch.set_num_threads(1)
    mine, theirs = tensors_of(Path(one)), tensors_of(Path(two))
    fd, offset, jobs = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 0, []
    with ThreadPoolExecutor(THREADS) as pool:
        for name, info in mine.items():
            jobs.append(pool.submit(mean_of, info, theirs[name], fd, offset))
            offset += info.nbytes
    os.fsync(fd)
    os.close(fd)
    print("distance", sum(job.result() for job in jobs) ** 0.5)


if __name__ == "__main__":
    main()
