"""Keeping the peak memory of a run that of its largest unit, and what it costs to map it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from functools import cache
from pathlib import Path

CACHE = 2_000_000_000
"""Bytes of units that passes over whole models keep from one pass to the next, where nothing sets a limit; others
are read again."""
M_MMAP_THRESHOLD = -3
"""glibc's mallopt parameter: blocks at least this large are mapped, and unmapped when freed."""
LARGE = 1 << 21
M_TRIM_THRESHOLD = -1
"""glibc's mallopt parameter: the heap is given back when this much is free at its end."""
SPARE = 32 << 20
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The environment variable by which torch asks for huge pages; it is read at the first allocation."""


@cache
def map_large_blocks() -> bool:
    """Have freed tensors leave the process at once; returns whether the C library is one that can.

    By default glibc raises its threshold to 32 MB after the first large block is freed and serves later ones from
    a heap that units of changing shapes leave full of holes: measured on a Llama-shaped pair, the peak was 24 %
    higher and rose by 8 to 19 % from 4 layers to 16; with a fixed threshold it rises by 1 %.

    Blocks that are mapped afresh cost a page fault for every 4 kB, which was a third of the time of an unaligned
    merge; in huge pages (where torch has not allocated anything yet, and the user has not said otherwise) they cost
    a quarter of that.
    """
    os.environ.setdefault(HUGE_PAGES, "1")
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        # the heap keeps the pieces that tensors are worked on in, instead of giving each back (128 kB by default)
        return bool(mallopt(M_MMAP_THRESHOLD, LARGE) and mallopt(M_TRIM_THRESHOLD, SPARE))
    except (OSError, AttributeError):
        return False


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that this process may still take: what the system has available, and what its control group leaves.

    Without either (no Linux) there is no limit that could be known.
    """
    limits = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        limits.append(1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with contextlib.suppress(OSError, ValueError):
        group = root / "sys/fs/cgroup"
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        limits.append(float(int(limit) - int(used)))
    return min(limits)
