"""Whole files: what may be written where, written complete or not at all, and errors as sentences."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import DiskFullError, IsomergeError, is_full_error

if TYPE_CHECKING:
    from torch import Tensor


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
        IsomergeError: no folder to write into, a folder, a device or a file in its place, or a name that no file can have.
    """
    with disk_errors(path, "looking up"):
        if not path.absolute().parent.is_dir():
            raise IsomergeError(f"{name}: no such folder; make it first")
        if path.is_dir():
            raise IsomergeError(f"{name} is a folder: name a file")
        if os.path.lexists(path) and not force:
            raise IsomergeError(f"{name} exists: choose another file, or --overwrite a file")
        if os.path.exists(path) and not path.is_file():  # a device would be replaced by a file
            raise IsomergeError(f"{name} is no plain file: choose another one")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise IsomergeError(
            f"{name}: this folder may not be written into; choose another one, or change its permissions"
        )


def check_not_read(path: Path, name: str, reads: Iterable[Path]) -> None:
    """Refuse a file to write that takes the place of one that is read.

    Args:
        path: the file.
        name: what errors call it.
        reads: the files that are read.

    Raises:
        IsomergeError: it is one of them.
    """
    there = os.path.realpath(path)
    if any(os.path.realpath(file) == there for file in reads):
        raise IsomergeError(f"{name} is read, and would be replaced by what is made of it: choose another file")


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
) -> None:
    """Write a safetensors file, complete or not at all; equal tensors give equal bytes.

    Args:
        path: the file; one that is there is replaced.
        tensors: by name; any device, any strides. Some may share memory, which the format does not know: each is written.
        about: goes into its metadata as JSON under the one key ``isomerge``: safetensors writes several keys in an order that
            changes from run to run.
        metadata: the metadata itself, of one key, where it is not ours.
        durable: whether a power cut must not leave an empty file under the name; not for what is checked when it is read.

    Raises:
        IsomergeError: it cannot be written.
    """
    from safetensors.torch import save_file

    header = metadata if about is None else {"isomerge": json.dumps(about, sort_keys=True)}
    beside = path.with_name(f".{path.name}.partial")
    try:
        with disk_errors(path):
            save_file(_apart(tensors), str(beside), None if header is None else dict(header))
            if durable:
                flush(beside)
            os.replace(beside, path)
    finally:
        with suppress(OSError):  # as where the folder is none
            beside.unlink()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them, in the order of their names: contiguous, no two in the same memory."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, x in sorted(tensors.items()):
        x = x.detach().contiguous()
        place = x.untyped_storage().data_ptr()
        found[name] = x.clone() if place in seen else x
        seen.add(place)
    return found


@contextmanager
def open_fd(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A file descriptor, closed at the end. Raises OSError."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def flush(path: Path) -> None:
    """Waits until the file or folder ``path`` is on the device. Raises OSError."""
    with open_fd(path) as fd:
        os.fsync(fd)
