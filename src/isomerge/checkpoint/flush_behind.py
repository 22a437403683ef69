"""Files flushed to the device in a thread of their own while more is written to them, so that the end waits for little."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from isomerge.files import disk_errors, flush

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
