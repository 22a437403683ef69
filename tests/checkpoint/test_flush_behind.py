"""Flushing beside writing: never two at once, nothing forgotten, and what the device refuses is told."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from isomerge.checkpoint import disk
from isomerge.checkpoint.disk import FLUSH_AFTER, FlushBehind
from isomerge.errors import DiskFullError


def test_one_flush_at_a_time_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while one goes on waits for the next."""
    go, seen = threading.Semaphore(0), []

    def slow(path: Path) -> None:
        go.acquire()
        seen.append((path.name, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(disk, "flush", slow)
    behind = FlushBehind()
    behind.written(Path("a"), FLUSH_AFTER - 1)
    behind.written(Path("a"), 1)  # begins
    behind.written(Path("b"), FLUSH_AFTER)  # waits
    go.release()
    behind.wait()
    assert seen == [("a", False)]
    behind.written(Path("c"), 1)  # begins with what has waited
    go.release(2)
    behind.wait()
    assert seen == [("a", False), ("b", False), ("c", False)]
    behind.close()


def test_what_the_device_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next that is written, or at the end; as a sentence that names the file."""

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "flush", full)
    behind = FlushBehind()
    behind.written(Path("weights"), FLUSH_AFTER)
    with pytest.raises(DiskFullError, match="the disk is full while writing weights"):
        behind.wait()
    behind.close()
