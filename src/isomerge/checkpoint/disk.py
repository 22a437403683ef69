"""Reading and writing at an offset of a file, as much as there is, and reading ahead."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

# Linux moves at most 2 GiB - 4 KiB in one call; smaller pieces also let an interrupt through.
_PIECE = 1 << 28
_MADV_POPULATE_READ = 22
# Linux begins to read no more than its read-ahead window for one call, 128 kB by default.
_AHEAD = 1 << 17
_PROBES = 8


def read_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Fills ``buffer`` (bytes) from byte ``offset`` of ``fd``; returns the bytes read, fewer at file end."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done : done + _PIECE]], offset + done)
        if count == 0:
            break
        done += count
    return done


def read_ahead(fd: int, offset: int, size: int) -> None:
    """Has the system begin to read bytes of ``fd`` into its cache; returns at once. Raises OSError."""
    if _is_cached(fd, offset, size):  # asking for what is there takes as long as a tenth of an unaligned merge
        return
    for start in range(offset, offset + size, _AHEAD):
        os.posix_fadvise(fd, start, min(_AHEAD, offset + size - start), os.POSIX_FADV_WILLNEED)


def _is_cached(fd: int, offset: int, size: int) -> bool:
    """Whether bytes seem to be in the system's cache already: some at even distances are."""
    byte, step = bytearray(1), max(1, size // _PROBES)
    try:
        return all(os.preadv(fd, [byte], place, os.RWF_NOWAIT) for place in range(offset, offset + size, step))
    except (AttributeError, OSError):  # not there, or not told by this system or file system
        return False


def map_private(fd: int, offset: int, size: int) -> memoryview:
    """``size`` bytes (not none) from byte ``offset`` of ``fd``, mapped; what is written to them stays in this
    process.

    Raises OSError.
    """
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(
        fd,
        offset - start + size,
        flags=mmap.MAP_PRIVATE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
        offset=start,
    )
    with suppress(OSError):  # before Linux 5.14 they are read when they are touched
        pages.madvise(_MADV_POPULATE_READ)
    return memoryview(pages)[offset - start :]


def write_from(fd: int, buffer: memoryview, offset: int) -> None:
    """Writes all of ``buffer`` (bytes) at byte ``offset`` of ``fd``. Raises OSError."""
    done = 0
    while done < len(buffer):
        done += os.pwrite(fd, buffer[done : done + _PIECE], offset + done)
