"""Records: one example as its source tells it, from JSON lines, tables and functions."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError, own_code
from isomerge.plug_ins.modules import importable

PICTURED = ("image", "img")
"""Fields with an image."""
LINES = (".jsonl", ".json", ".ndjson")
TABLES = (".csv", ".tsv")
"""Endings of files of records."""
_END = object()


Row = dict[str, Any]
"""One example by the names of its fields: as a source has it, or as a model takes it."""


@dataclass(frozen=True)
class Record:
    """One example, as it was found: ``where`` names the place in errors."""

    where: str
    fields: Mapping[str, Any]
    folder: Path | None = None
    """From which files that it names are found; without one it names none."""


def named_classes(
    row: Mapping[str, Any], names: Mapping[str, Sequence[str] | None], known: Mapping[str, int]
) -> Row:
    """A row of a data set with the names of its classes in place of their numbers, where the checkpoint knows them
    all.

    Args:
        row: of the data set.
        names: of the classes, by the columns that hold them.
        known: the classes of the checkpoint.
    """
    known_names = {key: classes for key, classes in names.items() if classes and set(classes) <= set(known)}
    return {
        key: known_names[key][value]
        if key in known_names and isinstance(value, int) and 0 <= value < len(known_names[key])
        else value
        for key, value in row.items()
    }


def file_records(path: Path) -> Iterator[Record]:
    """The records of a file of one of the forms in `LINES` and `TABLES`.

    Raises:
        IsomergeError: see `json_records` and `table_records`.
    """
    return table_records(path) if path.suffix.lower() in TABLES else json_records(path)


def json_records(path: Path) -> Iterator[Record]:
    """The objects of a file: one on every line, or one list of them.

    Raises:
        IsomergeError: not JSON, or not objects.
    """
    remedy = 'write one object on every line, such as {"text": "...", "label": 0}'
    try:
        with path.open(encoding="utf-8-sig") as stream:
            if path.suffix.lower() == ".json" and stream.read(1024).lstrip()[:1] == "[":
                stream.seek(0)
                for number, item in enumerate(json.load(stream), 1):
                    yield _object(item, f"{path}, item {number}", remedy, path.parent)
                return
            stream.seek(0)
            for number, line in enumerate(stream, 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    try:
                        item = json.loads(line)
                    except (ValueError, RecursionError):
                        raise IsomergeError(f"{where} is not valid JSON: {remedy}") from None
                    yield _object(item, where, remedy, path.parent)
    except (ValueError, RecursionError):
        raise IsomergeError(f"{path} is not valid JSON in UTF-8: {remedy}") from None
    except OSError as error:
        raise IsomergeError(f"{path} cannot be read ({error.strerror}); check the path") from None


def table_records(path: Path) -> Iterator[Record]:
    """The rows of a table, .csv or .tsv, by the names in its first line.

    Raises:
        IsomergeError: the first line names no text and no image, or a column twice; or a row has another length.
    """
    remedy = "name the columns in the first line, such as text,label, and put texts with commas in quotes"
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.DictReader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            names = rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            if names and not {"text", *PICTURED} & set(names):
                raise IsomergeError(f"{path} has no column text or image, but {', '.join(names)[:80]}: {remedy}")
            if twice := [name for name in names if names.count(name) > 1]:
                raise IsomergeError(f"{path} has two columns {twice[0]}: {remedy}")
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                if None in row or None in row.values():
                    raise IsomergeError(f"{where} has not as many columns as the first line: {remedy}")
                yield Record(where, row, path.parent)
    except (csv.Error, ValueError) as error:
        raise IsomergeError(f"{path} is no table in UTF-8 ({error}): {remedy}") from None
    except OSError as error:
        raise IsomergeError(f"{path} cannot be read ({error.strerror}); check the path") from None


def _object(item: Any, where: str, remedy: str, folder: Path) -> Record:
    if not isinstance(item, dict):
        raise IsomergeError(f"{where} is no JSON object: {remedy}")
    return Record(where, item, folder)


def may_be_function(ref: str) -> bool:
    """Whether ``ref`` is written ``module:function``; nothing is looked up."""
    module, colon, function = ref.partition(":")
    return bool(colon) and function.isidentifier() and all(p.isidentifier() for p in module.split("."))


def is_function(ref: str) -> bool:
    """Whether ``ref`` is written ``module:function`` with a module that Python finds (the current folder counts;
    packages around the module are imported)."""
    if not may_be_function(ref):
        return False
    module = ref.partition(":")[0]
    with importable(os.getcwd()):
        try:
            return importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            return False


def function_records(ref: str, option: str) -> Iterator[Record]:
    """What a Python function returns: an iterable of mappings, each an example or a batch of tensors.

    Raises:
        IsomergeError: the function is missing or fails, or gives something else.
    """
    module, _, name = ref.partition(":")
    with importable(os.getcwd()):
        with own_code(f"{option} {ref}: the function failed at item 1"):
            function = getattr(importlib.import_module(module), name, None)
            if not callable(function):
                raise IsomergeError(f"{option} {ref}: the module {module} has no function {name}: check the name")
            records = function()
            if not isinstance(records, Iterable):
                raise IsomergeError(f"{option} {ref}: the function must return an iterable of dicts")
            items = iter(records)
        for number in count(1):
            with own_code(f"{option} {ref}: the function failed at item {number}"):
                item = next(items, _END)
                if item is _END:
                    return
                if not isinstance(item, Mapping):
                    raise IsomergeError(
                        f"{option} {ref}: item {number} is a {type(item).__name__}: the function must give dicts"
                    )
                rows = _unbatched(item, f"{option} {ref}, item {number}")
            yield from rows


def _unbatched(item: Mapping[str, Any], where: str) -> list[Record]:
    """One record, or one for every row of a batch of tensors."""
    ranks = {"pixel_values": 4, "input_ids": 2}
    batch = any(getattr(item.get(key), "ndim", 0) == rank for key, rank in ranks.items())
    if not batch:
        return [Record(where, item)]
    lengths = {len(value) for value in item.values() if hasattr(value, "__len__")}
    if len(lengths) != 1:
        raise IsomergeError(f"{where}: the tensors of a batch must have equal first dimensions")
    return [
        Record(where, {key: value[row] if hasattr(value, "__len__") else value for key, value in item.items()})
        for row in range(lengths.pop())
    ]
