"""Whole files: what may be written where, written complete or not at all, and errors as sentences."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import DiskFullError, IsomergeError, is_full_error
from isomerge.lock import held

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 255
"""Bytes of a file's name, on nearly all file systems."""


def unreadable(path: str | Path, what: str, error: OSError | UnicodeDecodeError) -> IsomergeError:
    """What is said of a file of text that a user named and that cannot be read: a recipe, a spec."""
    reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
    return IsomergeError(f"{path}: cannot read this {what} ({reason}); give the path of a {what}")


@contextmanager
def disk_errors(path: Path, doing: str = "writing") -> Iterator[None]:
    """Turns an OSError of the block, and the safetensors library's, into an IsomergeError that names ``path`` or
    the file at fault; a lack of memory into MemoryError.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("safetensors") and (code := re.search(r"os error (\d+)", str(error))):
            error = OSError(int(code[1]), os.strerror(int(code[1])))
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


def check_file(path: Path, name: str, *, overwrite: bool) -> None:
    """Refuse a file to write that cannot be one, before anything is computed for it.

    Args:
        path: the file.
        name: what errors call it.
        overwrite: whether a file that is there may be replaced.

    Raises:
        IsomergeError: no folder to write into, a folder, a device or a file in its place, or a name that no file
            can have.
    """
    with disk_errors(path, "looking up"):
        if not path.absolute().parent.is_dir():
            raise IsomergeError(f"{name}: no such folder; make it first")
        if path.is_dir():
            raise IsomergeError(f"{name} is a folder: name a file")
        if os.path.lexists(path) and not overwrite:
            raise IsomergeError(f"{name} exists: choose another file, or --overwrite a file")
        if os.path.exists(path) and not path.is_file():  # a device would be replaced by a file
            raise IsomergeError(f"{name} is no plain file: choose another one")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise IsomergeError(
            f"{name}: this folder may not be written into; choose another one, or change its permissions"
        )


def check_not_read(path: Path, name: str, reads: Iterable[Path]) -> None:
    """Refuse a file to write that takes the place of one that is read, by whatever name: through links of both
    kinds, too.

    Args:
        path: the file.
        name: what errors call it.
        reads: the files that are read, and folders of which all is read.

    Raises:
        IsomergeError: it is one of them, or in one of them.
    """
    try:
        there = os.stat(path)
    except OSError:  # nothing there that could be lost
        return
    if any(_holds(place, path, there) for place in reads):
        raise IsomergeError(f"{name} is read, and would be replaced by what is made of it: choose another file")


def _holds(place: Path, path: Path, there: os.stat_result) -> bool:
    """Whether a file is what is at ``path``, or a folder has it in it."""
    try:
        if os.path.samestat(os.stat(place), there):
            return True
    except OSError:
        return False
    if not place.is_dir():
        return False
    if os.path.realpath(path).startswith(os.path.join(os.path.realpath(place), "")):
        return True
    # only another name leads from elsewhere into the folder: a hard link, or a link in it
    return any(_holds(file, path, there) for file in place.rglob("*") if not file.is_dir())


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
        tensors: by name; any device, any strides. Some may share memory, which the format does not know: each is
            written.
        about: goes into its metadata as JSON under the one key ``isomerge``: safetensors writes several keys in an
            order that changes from run to run.
        metadata: the metadata itself, of one key, where it is not ours.
        durable: whether a power cut must not leave an empty file under the name; not for what is checked when it is
            read.

    Raises:
        IsomergeError: it cannot be written.
    """
    from safetensors.torch import save, save_file

    header = metadata if about is None else {"isomerge": json.dumps(about, sort_keys=True)}
    header = None if header is None else dict(header)
    with whole_file(path, durable=durable) as beside:
        if is_device(path):  # in whose place the library would put a file
            beside.write_bytes(save(_apart(tensors), header))
            return
        beside.write_bytes(b"")
        mode = beside.stat().st_mode
        save_file(_apart(tensors), str(beside), header)
        beside.chmod(mode)  # the library's files are their owner's alone


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them, in the order of their names: contiguous, no two in the same memory."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, x in sorted(tensors.items()):
        x = x.detach().contiguous()
        place = x.untyped_storage().data_ptr()
        apart[name] = x.clone() if place in seen else x
        seen.add(place)
    return apart


def is_device(path: Path) -> bool:
    """Whether what is at ``path`` is a device, a pipe or an open file of a process (``/dev/stdout``), written into
    and never replaced."""
    there = path.absolute()
    if any(map(there.is_relative_to, ("/dev", "/proc"))) and not there.is_relative_to(
        "/dev/shm"
    ):  # a disk in memory
        return True
    return os.path.exists(path) and not path.is_file() and not path.is_dir()


@contextmanager
def whole_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A file beside ``path`` for the block to write, which takes its place at the end; after an error nothing has
    changed.

    Processes that write the same file do so one after the other.

    What is no file of its own (see `is_device`) is given as it is: there is nothing in it to keep.

    Args:
        path: the file; one that is there is replaced.
        durable: see `write_tensors`.

    Raises:
        IsomergeError: it cannot be written.
    """
    if is_device(path):
        with disk_errors(path):
            yield path
        return
    hidden = f".{path.name}"
    if len(os.fsencode(hidden)) + len(".partial") > LONGEST:
        hidden = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}"
    with disk_errors(path), held(path.with_name(f"{hidden}.lock")):
        beside = path.with_name(f"{hidden}.partial")
        if os.path.lexists(beside):  # a file of the user's, or what a killed run has left: nobody can tell
            beside = path.with_name(f"{hidden[: LONGEST - 40]}.{os.getpid()}-{time.monotonic_ns()}.partial")
        try:
            yield beside
            if durable:
                flush(beside)
            os.replace(beside, path)
        finally:
            with suppress(OSError):
                beside.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, complete or not at all; see `whole_file`."""
    with whole_file(path) as beside:
        beside.write_bytes(content)


@contextmanager
def open_fd(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A file descriptor, closed at the end. Raises OSError."""
    fd = os.open(path, flags, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def flush(path: Path) -> None:
    """Waits until the file or folder ``path`` is on the device. Raises OSError."""
    with open_fd(path) as fd:
        os.fsync(fd)
