"""The floor of an unaligned merge: the mean of two models in bfloat16 by one compiled loop, with nothing around it.

    python -m benchmarks.performance.bare_loop ONE TWO OUT_FILE

Maps both models, widens their entries, averages them, measures their distance and norm, looks for what is not finite,
rounds to nearest even and writes, in two threads; no checksums, plan, names, journal, report or flush. A row of
`benchmarks.performance.merging`.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np

from isomerge.checkpoint.header import TensorInfo, read_header

THREADS = 2
BLOCK = 4096
"""Entries that are summed in float32 before float64 takes over."""
PIECE = 1 << 21
"""Entries that a thread takes at a time."""


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def mean_of(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> tuple[float, float, bool]:
    """Bits of two vectors of bfloat16 into those of their mean: the squared distance and norm, and whether an entry
    is not finite.
    """
    mean, distance, norm, overflow = np.empty(BLOCK, np.float32), 0.0, 0.0, False
    for start in range(0, a.size, BLOCK):
        x = (a[start : start + BLOCK].astype(np.uint32) << np.uint32(16)).view(np.float32)
        y = (b[start : start + BLOCK].astype(np.uint32) << np.uint32(16)).view(np.float32)
        gap = square = np.float32(0)
        for i in range(x.size):
            gap += (y[i] - x[i]) * (y[i] - x[i])
            square += x[i] * x[i]
            mean[i] = np.float32(0.5) * x[i] + np.float32(0.5) * y[i]
        bits, place, most = mean.view(np.uint32), out[start : start + BLOCK], np.uint32(0)
        for i in range(x.size):
            most = max(most, bits[i] & np.uint32(0x7F800000))
            place[i] = np.uint16(
                (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            )
        distance += gap
        norm += square
        overflow |= most == np.uint32(0x7F800000)
    return float(distance), float(norm), overflow


def tensors_of(folder: str) -> dict[str, TensorInfo]:
    files = sorted(Path(folder).glob("*.safetensors"))
    return {name: info for file in files for name, info in read_header(file)[0].items()}


def stored(info: TensorInfo) -> np.ndarray:
    return np.memmap(info.file, np.uint16, "r", info.offset, info.nbytes // 2)


def main() -> None:
    """Every tensor of both folders, in pieces."""
    one, two, out = sys.argv[1:]
    mine, theirs = tensors_of(one), tensors_of(two)
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(a: np.ndarray, b: np.ndarray, offset: int) -> float:
        place = np.empty(a.size, np.uint16)
        distance, _, overflow = mean_of(a, b, place)
        if overflow:
            raise SystemExit("not finite")
        os.pwrite(fd, place.data, offset)
        return distance

    jobs, offset = [], 0
    with ThreadPoolExecutor(THREADS) as pool:
        for name, info in mine.items():
            a, b = stored(info), stored(theirs[name])
            for start in range(0, a.size, PIECE):
                jobs.append(pool.submit(write, a[start : start + PIECE], b[start : start + PIECE], offset))
                offset += 2 * min(PIECE, a.size - start)
    os.close(fd)
    print("distance", sum(job.result() for job in jobs) ** 0.5)


if __name__ == "__main__":
    main()
