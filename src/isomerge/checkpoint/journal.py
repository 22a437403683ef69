"""The journal of a half-written checkpoint: which units of work are written, and the checksums of what they wrote.

Nothing is flushed to the device for it. What a process has written outlives the process; what a power cut takes away, of the
journal or of the files, is found by the checksums when the run goes on. Units may depend on what was journalled before them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

FORMAT = 3
"""Version of the journal's layout; another version is not resumed."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A committed unit of work: the caller's ``record``, and the tensors and side files it wrote, each with its CRC-32."""

    record: dict[str, Any]
    tensors: dict[str, int]
    blobs: dict[str, int]


class Journal:
    """Append-only lines of a CRC-32 and JSON: the first says what is being written, each further one commits a unit.

    A line counts once its newline is in the file, so a process killed while it writes loses that line alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, identity: dict[str, str]) -> None:
        """Starts the journal with ``identity``: digests of everything that determines the output."""
        self._append({"format": FORMAT, **identity}, os.O_CREAT | os.O_TRUNC)

    def append(
        self, unit: str, record: dict[str, Any], tensors: Mapping[str, int], blobs: Mapping[str, int]
    ) -> None:
        """Commits ``unit``.

        Raises TypeError or ValueError when ``record`` has no JSON form, and OSError.
        """
        line = {"unit": unit, "record": record, "tensors": dict(tensors), "blobs": dict(blobs)}
        self._append(line, os.O_APPEND)

    def replay(self, identity: dict[str, str]) -> dict[str, Unit] | None:
        """The committed units by key, in their order; a torn last line is cut off the file.

        None when the journal is missing, was begun for another ``identity``, is damaged before its end, or has a unit twice.
        Raises OSError.
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
        found = {pair[0]: pair[1] for pair in units if pair is not None}
        return found if len(found) == len(units) else None

    def keep(self, count: int) -> None:
        """Cuts off what comes after so many units. Raises OSError."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        os.truncate(self.path, sum(map(len, lines[: 1 + count])))

    def _append(self, content: dict[str, Any], flags: int) -> None:
        text = json.dumps(content).encode()
        line = memoryview(b"%08x %b\n" % (crc32(text), text))
        fd = os.open(self.path, os.O_WRONLY | flags, 0o666)
        try:
            start = os.fstat(fd).st_size
            try:
                while line:
                    line = line[os.write(fd, line) :]
            except OSError:
                os.ftruncate(fd, start)  # a full disk may take half a line: leave the journal as it was
                raise
        finally:
            os.close(fd)


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
    whole = all(type(crc) is int for found in sums for crc in found.values())
    return (unit, Unit(record, *sums)) if whole else None
