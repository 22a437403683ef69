"""What tells whether a file is still the one that was opened, here and on other machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from isomerge.errors import IsomergeError


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it was when it was opened."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Stamp:
        """Of what the system says of a file."""
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


def stamps_of(files: Iterable[Path]) -> dict[Path, Stamp]:
    """The stamps of files.

    Raises IsomergeError when one cannot be read.
    """
    try:
        return {file: Stamp.of(file.stat()) for file in files}
    except OSError as error:
        raise IsomergeError(f"{error.filename} cannot be read ({error.strerror}); check the checkpoint") from error


def stamps_here(opened: Mapping[Path, Stamp]) -> dict[Path, Stamp]:
    """This machine's stamps of files that were opened on another one: inodes may be others, sizes and dates may
    not.

    Raises IsomergeError when a file is missing here, or another one.
    """
    stamps = stamps_of(opened)
    for file, stamp in opened.items():
        if (stamps[file].size, stamps[file].modified_ns) != (stamp.size, stamp.modified_ns):
            raise IsomergeError(f"{file} is not the file that was opened: its size or date is another")
    return stamps
