"""Plain file input and output: whole reads and writes at an offset, flushing, and errors as sentences."""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import DiskFullError, IsomergeError, is_full_error

if TYPE_CHECKING:
    from torch import Tensor

# Linux moves at most 2 GiB - 4 KiB in one call; smaller pieces also let an interrupt through.
_PIECE = 1 << 28
_MADV_POPULATE_READ = 22
# Linux begins to read no more than its read-ahead window for one call, 128 kB by default.
_AHEAD = 1 << 17
_PROBES = 8


@contextmanager
def disk_errors(path: Path, doing: str = "writing") -> Iterator[None]:
    """Turns an OSError of the block, and the safetensors library's, into an IsomergeError that names ``path`` or
    the file at fault; a lack of memory into MemoryError.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("safetensors") and (found := re.search(r"os error (\d+)", str(error))):
            error = OSError(int(found[1]), os.strerror(int(found[1])))
        if not isinstance(error, OSError):
            raise
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{doing} {path}") from error
        if is_full_error(error):
            raise DiskFullError(
                f"the disk is full while {doing} {path}; free space there and run the same command again "
                "to go on where it stopped"
            ) from error
        culprit = f" at {error.filename}" if error.filename and str(error.filename) != str(path) else ""
        raise IsomergeError(
            f"{doing} {path} failed{culprit}: {error.strerror or error}; check the path and its permissions"
        ) from error


def check_file(path: Path, name: str, *, force: bool) -> None:
    """Refuse a file to write that cannot be one, before anything is computed for it.

    Args:
        path: the file.
        name: what errors call it.
        force: whether a file that is there may be replaced.

    Raises:
        IsomergeError: no folder to write into, a folder or a file in its place, or a name that no file can have.
    """
    with disk_errors(path, "looking up"):
        if not path.absolute().parent.is_dir():
            raise IsomergeError(f"{name}: no such folder; make it first")
        if path.is_dir() or (os.path.lexists(path) and not force):
            raise IsomergeError(f"{name} exists: choose another file, or --overwrite a file")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise IsomergeError(
            f"{name}: this folder may not be written into; choose another one, or change its permissions"
        )


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a safetensors file, complete or not at all; equal tensors give equal bytes.

    Args:
        path: the file; one that is there is replaced.
        tensors: by name, contiguous.
        about: goes into its metadata as JSON under the one key ``isomerge``: safetensors writes several keys in an order that
            changes from run to run.

    Raises:
        IsomergeError: it cannot be written.
    """
    from safetensors.torch import save_file

    beside = path.with_name(f".{path.name}.partial")
    try:
        with disk_errors(path):
            save_file(dict(sorted(tensors.items())), str(beside), {"isomerge": json.dumps(about, sort_keys=True)})
            flush(beside)  # a power cut must not leave an empty file under the name
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def open_fd(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A file descriptor, closed at the end. Raises OSError."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


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


def flush(path: Path) -> None:
    """Waits until the file or folder ``path`` is on the device. Raises OSError."""
    with open_fd(path) as fd:
        os.fsync(fd)
