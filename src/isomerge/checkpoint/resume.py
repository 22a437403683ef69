"""Where the writing of a checkpoint starts: in an empty partial folder, or after the units that an earlier run's
journal names.

The journal holds which units of work are written, and the checksums of what they wrote. Nothing is flushed to the
device for it. What a process has written outlives the process; what a power cut takes away, of the journal or of
the files, is found by the checksums when the run goes on. Units may depend on what was journalled before them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from isomerge.checkpoint.checksums import file_checksum, range_checksum
from isomerge.checkpoint.output_folder import PartialFolder
from isomerge.checkpoint.shard_plan import FileSpan, Shard, file_spans
from isomerge.checkpoint.weights import is_plain_name
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, flush, open_fd
from isomerge.progress import Observer
from isomerge.records import Json

FORMAT = 3
"""Version of the journal's layout; another version is not resumed."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A committed unit of work: the caller's ``record``, and the tensors and side files it wrote, each with its
    CRC-32."""

    record: Json
    tensors: dict[str, int]
    blobs: dict[str, int]


class Journal:
    """Append-only lines of a CRC-32 and JSON: the first says what is being written, each further one commits a
    unit.

    A line counts once its newline is in the file, so a process killed while it writes loses that line alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, identity: dict[str, str]) -> None:
        """Starts the journal with ``identity``: digests of everything that determines the output."""
        self._append({"format": FORMAT, **identity}, os.O_CREAT | os.O_TRUNC)

    def append(self, unit: str, record: Json, tensors: Mapping[str, int], blobs: Mapping[str, int]) -> None:
        """Commits ``unit``.

        Raises TypeError or ValueError when ``record`` has no JSON form, and OSError.
        """
        line = {"unit": unit, "record": record, "tensors": dict(tensors), "blobs": dict(blobs)}
        self._append(line, os.O_APPEND)

    def replay(self, identity: dict[str, str]) -> dict[str, Unit] | None:
        """The committed units by key, in their order; a torn last line is cut off the file.

        None when the journal is missing, was begun for another ``identity``, is damaged before its end, or has a
        unit twice. Raises OSError.
        """
        if not self.path.is_file():
            return None
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = [_checked(line) for line in whole.splitlines()]
        if not lines or lines[0] != {"format": FORMAT, **identity}:
            return None
        units = [_unit(line) for line in lines[1:]]
        if len(whole) < len(raw):
            os.truncate(self.path, len(whole))
        by_key = {pair[0]: pair[1] for pair in units if pair is not None}
        return by_key if len(by_key) == len(units) else None

    def keep(self, count: int) -> None:
        """Cuts off what comes after so many units. Raises OSError."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        os.truncate(self.path, sum(map(len, lines[: 1 + count])))

    def _append(self, content: Json, flags: int) -> None:
        text = json.dumps(content).encode()
        line = memoryview(b"%08x %b\n" % (crc32(text), text))
        with open_fd(self.path, os.O_WRONLY | flags) as fd:
            start = os.fstat(fd).st_size
            try:
                while line:
                    line = line[os.write(fd, line) :]
            except OSError:
                os.ftruncate(fd, start)  # a full disk may take half a line: leave the journal as it was
                raise


def _checked(line: bytes) -> Any:
    """What a line says; None where it is not as it was written."""
    crc, _, text = line.partition(b" ")
    try:
        return json.loads(text) if crc == b"%08x" % crc32(text) else None
    except (ValueError, RecursionError):
        return None


def _unit(line: Any) -> tuple[str, Unit] | None:
    if not isinstance(line, dict) or set(line) != {"unit", "record", "tensors", "blobs"}:
        return None
    unit, record, sums = line["unit"], line["record"], (line["tensors"], line["blobs"])
    if not isinstance(unit, str) or not isinstance(record, dict) or not all(isinstance(s, dict) for s in sums):
        return None
    whole = all(type(crc) is int for checksums in sums for crc in checksums.values())
    return (unit, Unit(record, *sums)) if whole else None


@dataclass(frozen=True, slots=True)
class Start:
    """``units`` are written already; ``discarded``: there was an earlier run, but nothing of it can be used."""

    units: dict[str, Unit]
    resumed: bool
    discarded: bool


def start(partial: PartialFolder, journal: Journal, shards: Sequence[Shard], key: str, observer: Observer) -> Start:
    """Goes on with an earlier run of the same ``key`` and plan, else makes all files of ``shards``, still without
    tensors.

    ``observer`` is told of bytes that the earlier run wrote, as they are checked. Raises IsomergeError when the
    disk lacks room or fails.
    """
    identity = {"key": key, "plan": _digest(shards)}
    units = _resume(partial, journal, shards, identity, observer)
    if units is not None:
        return Start(units, resumed=True, discarded=False)
    discarded = os.path.lexists(partial.root)
    _begin(partial, journal, shards, identity)
    return Start({}, resumed=False, discarded=discarded)


def _digest(shards: Sequence[Shard]) -> str:
    digest = hashlib.sha256()
    for shard in shards:
        digest.update(f"{shard.file}:{shard.size}:".encode())
        digest.update(shard.prefix)
    return digest.hexdigest()


def _resume(
    partial: PartialFolder, journal: Journal, shards: Sequence[Shard], identity: dict[str, str], observer: Observer
) -> dict[str, Unit] | None:
    """The units of an earlier run with this identity whose files are all as planned, else None.

    Where a unit's bytes are not those that the journal has, as after a power cut, it is left out, and so are all
    after it: they may have been made from what it wrote.
    """
    with disk_errors(partial.root, "resuming"):
        if not os.path.lexists(partial.root) or not partial.is_ours():
            return None
        units = journal.replay(identity)
        if units is None or not all(_as_planned(partial.model, shard) for shard in shards):
            return None
        if not partial.has_blobs():
            return None
    spans = file_spans(shards, partial.model)
    if any(name not in spans for unit in units.values() for name in unit.tensors):
        return None
    sizes = [sum(spans[name][2] for name in unit.tensors) for unit in units.values()]
    checked, total = 0, sum(sizes)
    for number, unit in enumerate(units.values()):
        observer("checking what was written", checked, total)
        if not _is_there(unit, spans, partial.blobs):
            journal.keep(number)
            with disk_errors(partial.blobs, "resuming"):
                for name in (name for again in list(units.values())[number:] for name in again.blobs):
                    if is_plain_name(name):
                        partial.remove_blob(name)  # whatever took its place: a folder cannot be written over
            return dict(list(units.items())[:number])
        checked += sizes[number]
    return units


def _as_planned(folder: Path, shard: Shard) -> bool:
    path = folder / shard.file
    if path.is_symlink() or not path.is_file() or path.stat().st_size != shard.size:
        return False
    with path.open("rb") as stream:
        return stream.read(len(shard.prefix)) == shard.prefix


def _is_there(unit: Unit, spans: Mapping[str, FileSpan], blobs: Path) -> bool:
    """Whether all that a unit wrote has the checksums that the journal has."""
    if any(range_checksum(*spans[name]).crc32 != crc for name, crc in unit.tensors.items()):
        return False
    paths = {blobs / name: crc for name, crc in unit.blobs.items() if is_plain_name(name)}
    return all(path.is_file() and file_checksum(path).crc32 == crc for path, crc in paths.items())


def _begin(partial: PartialFolder, journal: Journal, shards: Sequence[Shard], identity: dict[str, str]) -> None:
    """Headers are written and files have their full size at once, so that tensors may come in any order."""
    partial.begin()
    needed = sum(shard.size for shard in shards)
    with disk_errors(partial.root):
        free = shutil.disk_usage(partial.root).free
        if needed > free:
            shutil.rmtree(partial.root)
            raise IsomergeError(
                f"{partial.out} needs {needed} bytes but the disk has {free} free; "
                "free space there or choose another output folder"
            )
        for shard in shards:
            path = partial.model / shard.file
            path.write_bytes(shard.prefix)
            os.truncate(path, shard.size)
            flush(path)
        flush(partial.model)
        journal.begin(identity)
        flush(partial.root)
