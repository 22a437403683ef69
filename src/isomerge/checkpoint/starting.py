"""Where the writing of a checkpoint starts: in an empty partial folder, or after what an earlier run left in one."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isomerge.checkpoint.checksums import file_checksum, range_checksum
from isomerge.checkpoint.journal import Journal, Unit
from isomerge.checkpoint.partial import PartialFolder
from isomerge.checkpoint.plan import FileSpan, Shard, file_spans
from isomerge.checkpoint.weights import is_plain_name
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, flush
from isomerge.progress import Observer


@dataclass(frozen=True, slots=True)
class Start:
    """``units`` are written already; ``discarded``: there was an earlier run, but nothing of it can be used."""

    units: dict[str, Unit]
    resumed: bool
    discarded: bool


def start(
    partial: PartialFolder,
    journal: Journal,
    shards: Sequence[Shard],
    key: str,
    observer: Observer,
) -> Start:
    """Goes on with an earlier run of the same ``key`` and plan, else makes all files of ``shards``, still without tensors.

    ``observer`` is told of bytes that the earlier run wrote, as they are checked. Raises IsomergeError when the disk lacks
    room or fails.
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
    partial: PartialFolder,
    journal: Journal,
    shards: Sequence[Shard],
    identity: dict[str, str],
    observer: Observer,
) -> dict[str, Unit] | None:
    """The units of an earlier run with this identity whose files are all as planned, else None.

    Where a unit's bytes are not those that the journal has, as after a power cut, it is left out, and so are all after
    it: they may have been made from what it wrote.
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
            _forget(partial, list(units.values())[number:])
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


def _forget(partial: PartialFolder, units: Iterable[Unit]) -> None:
    """Removes the side files of units that are to be done again, whatever has taken their places (a folder cannot be
    written over).
    """
    with disk_errors(partial.blobs, "resuming"):
        for name in (name for unit in units for name in unit.blobs if is_plain_name(name)):
            partial.remove_blob(name)


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
