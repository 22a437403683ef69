"""The files that go into a checkpoint folder beside its weights: which names are fit, and putting them there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from isomerge.checkpoint.checksums import Checksum, file_checksum
from isomerge.checkpoint.weights import is_plain_name
from isomerge.errors import IsomergeError
from isomerge.files import flush


def check_extras(out: Path, files: Mapping[str, bytes | Path], reserved: set[str]) -> None:
    """Raises IsomergeError unless every name of ``files`` stays within ``out`` and every source exists.

    ``reserved`` are the names of the weights files and their index.
    """
    for name, content in files.items():
        if not all(is_plain_name(part) for part in name.split("/")):
            raise IsomergeError(f"{out}: {name!r} is no file name within it; use a relative name without '..'")
        if name in reserved:
            raise IsomergeError(f"{out}: {name!r} is one of its weights files; give the extra file another name")
        if isinstance(content, Path) and not content.is_file():
            raise IsomergeError(f"{content}, to be copied to {out / name}, does not exist; check the path")


def write_extras(
    folder: Path, files: Mapping[str, bytes | Path], *, keep: set[str], links: Mapping[str, Path] | None = None
) -> dict[str, Checksum]:
    """Writes ``files`` into ``folder`` durably, after removing all but the files ``keep`` from it.

    ``links`` are further names for files that are there: hard links, or copies where the file system has none.

    What an interrupted run left there may be of other content, hence the removal. Returns the checksums of ``files``. Raises
    OSError.
    """
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in keep:
            path.unlink()
    folders = {folder}
    sums: dict[str, Checksum] = {}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content)
        sums[name] = file_checksum(path) if isinstance(content, Path) else Checksum.of(content)
        flush(path)
        folders.add(path.parent)
    for name, source in (links or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except OSError:  # a file system without hard links, or with too many of them
            shutil.copyfile(source, path)
            flush(path)
        folders.add(path.parent)
    for path in sorted(folders):
        flush(path)
    return sums
