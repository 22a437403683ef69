"""An output folder is none that is read, holds nothing that is read, and lies in nothing that is read, by whatever name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from isomerge.checkpoint.companions import MODEL_FILES, WEIGHTS
from isomerge.errors import IsomergeError

_Place = tuple[int, int]
"""What a folder or file is, whatever it is called: its device and its number there."""


def check_apart(out: Path, reads: Iterable[Path]) -> None:
    """Refuse an output folder that would replace what is read, or that would grow inside of it.

    Folders are told by what they are and not by their names: through links, ``x/../A``, other letters' cases where the file
    system does not tell them apart, and mounts.

    Args:
        out: the folder, there or not.
        reads: files that are read, and folders of which all is read.

    Raises:
        IsomergeError: naming what is read.
    """
    here, above = _place(out), dict(_above(out))
    for file in dict.fromkeys(reads):
        if here is not None and here in (_place(file), *map(_place, _whole(file))):
            raise IsomergeError(
                f"{out} is read, and would be replaced by what is made of it; choose another output folder"
            )
        if here is not None and here in dict(_above(file)):
            raise IsomergeError(
                f"{out} holds {file}, which is read: --overwrite would remove it; choose another output folder"
            )
        for folder in _whole(file):
            if (found := _place(folder)) is not None and found in above:
                raise IsomergeError(
                    f"{out} lies in {folder}, which is read: an input stays as it is; choose another output folder"
                )


def _place(path: Path) -> _Place | None:
    """What is at a path, behind links; None where nothing is."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _above(path: Path) -> Iterator[tuple[_Place, Path]]:
    """The folders that a path lies in: as it is written, and where it really is."""
    for way in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        for folder in way.parents:
            if (found := _place(folder)) is not None:
                yield found, folder


def _whole(file: Path) -> Iterator[Path]:
    """The folders that are read with a file: a folder itself, the model of weights, and its repository in the hub's cache."""
    if file.is_dir():
        yield file
    elif file.suffix in WEIGHTS and any((file.parent / name).is_file() for name in MODEL_FILES):
        yield file.parent
        if file.parent.parent.name == "snapshots":
            yield file.parent.parent.parent
