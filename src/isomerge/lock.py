"""A lock file, held by one process at a time and gone when nobody holds it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems answer that know no locks."""


def take(path: Path, *, wait: bool) -> int:
    """Take the lock; returns the descriptor that holds it, for `give_back`.

    Args:
        path: the lock file; it is made where there is none.
        wait: until another process gives it back.

    Raises:
        BlockingIOError: another process holds it, and this one does not ``wait``.
        OSError: the file cannot be made, or its file system knows no locks.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_current(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_current(path: Path, fd: int) -> bool:
    """False when the holder before unlinked the lock file between our open and flock: try anew then."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def give_back(path: Path, fd: int) -> None:
    """Give up a lock that was taken; a file that holds something is not ours, and stays."""
    with suppress(OSError):  # a lock file left behind is harmless: only a held lock counts
        if not os.fstat(fd).st_size:
            path.unlink()  # while still held, so that no one else's file is removed
    os.close(fd)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """While it lasts, no other process holds this lock; one that does is waited for. Without locks, where there are
    none.

    Raises:
        OSError: the file cannot be made.
    """
    fd = None
    try:
        fd = take(path, wait=True)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        with suppress(OSError):
            path.unlink()
    try:
        yield
    finally:
        if fd is not None:
            give_back(path, fd)
