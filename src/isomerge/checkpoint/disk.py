"""Files at an offset: reading and writing as much as there is, reading ahead, and flushing to the device in a
thread of its own while more is written, so that the end waits for little."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from isomerge.files import disk_errors, flush

# Linux moves at most 2 GiB - 4 KiB in one call; smaller pieces also let an interrupt through.
_PIECE = 1 << 28
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


def write_from(fd: int, buffer: memoryview, offset: int) -> None:
    """Writes all of ``buffer`` (bytes) at byte ``offset`` of ``fd``. Raises OSError."""
    done = 0
    while done < len(buffer):
        done += os.pwrite(fd, buffer[done : done + _PIECE], offset + done)


FLUSH_AFTER = 1 << 26
"""Bytes that are worth a flush: a device takes them in some hundredths of a second."""


class FlushBehind:
    """Flushes files when much was written to them since, one after the other; used by one thread."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._unflushed: dict[Path, int] = {}

    def written(self, path: Path, nbytes: int) -> None:
        """Told of what was written; begins to flush if there is much, and nothing is being flushed.

        Raises:
            IsomergeError: the device refused what it was given before.
        """
        self._unflushed[path] = self._unflushed.get(path, 0) + nbytes
        if sum(self._unflushed.values()) < FLUSH_AFTER or (self._last is not None and not self._last.done()):
            return
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "flush behind")
        self._last = self._pool.submit(_flush, list(self._unflushed))
        self._unflushed.clear()

    def wait(self) -> None:
        """Until nothing is being flushed; raises what flushing raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Ends the thread; what is being flushed is."""
        if self._pool is not None:
            self._pool.shutdown()


def _flush(paths: Sequence[Path]) -> None:
    for path in paths:
        with disk_errors(path):
            flush(path)
