"""Folders of data sets, and which of their splits is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from isomerge.errors import IsomergeError

SAVED = ("dataset_info.json", "state.json", "dataset_dict.json")
"""A file that a data set saved to disk has."""
PARQUET = ".parquet"
KINDS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
"""What files and folders of splits are called on the Hub, and the split that is meant."""
SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}")
"""A file of several, as the Hub names them: ``test_sft-00000-of-00001``."""


def is_saved(folder: str | Path) -> bool:
    """Whether the package ``datasets`` saved a data set in this folder."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in SAVED)


def saved_split(ref: str) -> tuple[str, str]:
    """The folder of a data set on disk, and the split that is named behind it; both are empty where there is
    none."""
    if os.path.isdir(ref):
        return ref, ""
    folder, colon, split = ref.rpartition(":")
    return (folder, split) if colon and os.path.isdir(folder) and holds_set(folder) else ("", "")


def holds_set(folder: str | Path) -> bool:
    """Whether a folder holds a data set: one that was saved there, or parquet files."""
    return is_saved(folder) or bool(parquet_files(Path(folder)))


def parquet_files(folder: Path) -> list[Path]:
    """The parquet files under a folder by their names, hidden ones left out, and tables of metadata that stand
    beside images."""
    tables = (p for p in folder.rglob("*") if p.suffix.lower() == PARQUET and p.stem != "metadata" and p.is_file())
    return sorted(p for p in tables if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def chosen_split(names: Iterable[str], split: str, where: str, folder: str) -> str:
    """The split that is read: the one that is named, else the one for testing, else for validation.

    Raises:
        IsomergeError: there is none of this name, or none is named where it must be.
    """
    names = list(names)
    chosen = next((name for name in ([split] if split else ["test", "validation"]) if name in names), None)
    if chosen is None:
        raise IsomergeError(f"{where} has the splits {', '.join(names)}: name one, as in {folder}:split")
    return chosen


def files_of_split(folder: Path, files: Iterable[Path], split: str, where: str) -> list[Path]:
    """Those of a data set's ``files`` that are of one split, by their names; all of them where names tell no split.

    Raises:
        IsomergeError: several data sets, no such split, or several without one that is named.
    """
    groups: dict[str, list[Path]] = {}
    homes: dict[Path, None] = {}
    for file in files:
        parts = file.relative_to(folder).parts[:-1]
        homes[folder.joinpath(*(p for p in parts if p.lower() not in KINDS))] = None
        groups.setdefault(_split_of(file.stem, parts), []).append(file)
    if len(homes) > 1:
        few = ", ".join(map(str, list(homes)[:3]))
        raise IsomergeError(f"{where} holds several data sets ({few}): give the folder of one")
    if len(groups) == 1 and not split and next(iter(groups)) not in KINDS.values():
        return next(iter(groups.values()))
    if set(groups) == {""}:
        raise IsomergeError(f"{where}: the files in {folder} name no splits: leave :{split} out")
    return groups[chosen_split(sorted(filter(None, groups)), split, where, str(folder))]


def _split_of(stem: str, folders: Iterable[str]) -> str:
    """The split that a file's name tells, or one of its folders; empty where they tell none."""
    if shard := SHARD.match(stem):
        return KINDS.get(shard[1].lower(), shard[1])
    words = [*re.split("[^a-zA-Z]+", stem), *folders]
    return next((KINDS[word.lower()] for word in words if word.lower() in KINDS), "")
