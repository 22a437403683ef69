"""Spec texts of others: folders that packages name by entry points of ``isomerge.architectures``, and folders that
modules register. No package is imported for its texts."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple

from isomerge.errors import IsomergeError
from isomerge.files import unreadable
from isomerge.plug_ins.entry_points import ARCHITECTURES, module_source, origin, package_of, plug_ins
from isomerge.plug_ins.modules import under_way


class SpecText(NamedTuple):
    """A spec text of others."""

    file: str
    """Its path."""
    text: str
    source: str
    """The package and its version, or the file that registered it."""


@dataclass(frozen=True, eq=False)
class PlugInTexts:
    """The spec texts of others that are installed or registered."""

    by_kind: dict[str, SpecText] = field(default_factory=dict)
    """By model type; without those that several give."""
    refused: dict[str, str] = field(default_factory=dict)
    """By the model types that several give: the sentence that names them."""
    broken: list[str] = field(default_factory=list)
    """A sentence for every package whose texts cannot be read."""


_REGISTERED: dict[str, list[tuple[str, SpecText]]] = {}
"""By folder: model types with their texts."""


def model_types(text: str) -> list[str]:
    """The model types that a spec text says it is of, in its lines ``model NAME ...``."""
    return [kind for line in text.splitlines() if line.startswith("model ") for kind in line.split()[1:]]


def register(folder: str | os.PathLike[str], own: Mapping[str, tuple[str, str]]) -> None:
    """Register the ``*.spec`` files of a folder; the texts that it had when it was registered before are replaced.

    Args:
        folder: with the files; its folders are not looked at.
        own: isomerge's own texts by model type.

    Raises:
        IsomergeError: the folder has no texts, one cannot be read or names no model type, or a model type has a
            text already; nothing is registered then.
    """
    place = Path(os.path.realpath(os.path.expanduser(folder)))
    module = under_way()
    source = str(place) if module is None else module_source(module)
    rows = list(_read(place, source))
    others = [row for name, kept in _REGISTERED.items() if name != str(place) for row in kept]
    taken = {kind: f"isomerge itself ({name})" for kind, (name, _) in own.items()}
    taken |= {kind: text.file for kind, text in others}
    for kind, text in rows:
        if kind in taken:
            raise IsomergeError(_twice(kind, [taken[kind], text.file]))
        taken[kind] = text.file
    _REGISTERED[str(place)] = rows
    _read_texts.cache_clear()


def plug_in_texts(own: frozenset[str]) -> PlugInTexts:
    """All spec texts of others, of packages and registered: one object until there are others.

    Args:
        own: isomerge's own model types, which no other text replaces.
    """
    return _read_texts(tuple(sys.path), own)


@cache
def _read_texts(path: tuple[str, ...], own: frozenset[str]) -> PlugInTexts:
    """The same, read once for every state of Python's ``path``, on which packages lie."""
    texts, takers = PlugInTexts(), {kind: ["isomerge itself"] for kind in own}
    rows = [(kind, text, text.file) for kept in _REGISTERED.values() for kind, text in kept]
    for point in (point for points in plug_ins(ARCHITECTURES).values() for point in points):
        try:
            folder = _folder_of(point)
            rows += [(kind, text, origin(point)) for kind, text in _read(folder, package_of(point))]
        except IsomergeError as error:
            texts.broken.append(f"the plug-in of {origin(point)}: {error.sentence}")
    for kind, text, taker in rows:
        there = texts.by_kind.setdefault(kind, text)
        if there is text or os.path.realpath(there.file) != os.path.realpath(text.file):
            takers.setdefault(kind, []).append(taker)  # once of a folder that a package registers as well
    for kind, several in takers.items():
        if len(several) > 1:
            texts.refused[kind] = _twice(kind, several)
            texts.by_kind.pop(kind, None)
    return texts


def _twice(kind: str, takers: list[str]) -> str:
    return (
        f"model type {kind}: {' and '.join(takers)} both have a spec text for it; uninstall one, or name another "
        f"model type in it"
    )


def _folder_of(point: EntryPoint) -> Path:
    """The folder that an entry point names, ``package.folder``, found without importing anything.

    Raises:
        IsomergeError: there is none.
    """
    top, *inner = point.value.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place, *inner)
        if folder.is_dir():
            return folder
    raise IsomergeError(f"{point.value} is no folder of an installed package: name one that holds *.spec files")


def _read(folder: Path, source: str) -> Iterator[tuple[str, SpecText]]:
    """The spec texts of a folder, by their model types.

    Raises:
        IsomergeError: there are none, one cannot be read, or names no model type.
    """
    files = sorted(folder.glob("*.spec"))
    if not files:
        raise IsomergeError(f"{folder} is no folder with *.spec files: name one that holds some")
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(file, "spec file", error) from None
        if not (kinds := model_types(text)):
            raise IsomergeError(f"{file}: this spec text names no model type: write a line `model NAME`")
        for kind in kinds:
            yield kind, SpecText(str(file), text, source)
