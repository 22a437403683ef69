"""Records of data sets: of parquet files, as they lie on the Hub, read by pyarrow a few rows at a time; and of the
package `datasets`, one that it saved to disk, or loads by name."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError, first_line
from isomerge.observe.data.records import Record, may_be_function, named_classes
from isomerge.observe.data.splits import chosen_split, saved_split

ROWS = 64
"""Rows in memory at a time: rows may hold whole pictures."""


def parquet_records(files: Sequence[Path], class_ids: Mapping[str, int]) -> Iterator[Record]:
    """The rows of parquet files, one file after the other.

    Classes that the package ``datasets`` described in a file become the names that it gives them where the
    checkpoint (``class_ids``) knows them all.

    Raises:
        IsomergeError: neither pyarrow nor ``datasets``, which brings it, is installed; or a file is damaged.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise IsomergeError(
            f"{files[0]}: parquet files need the package datasets or pyarrow: pip install 'isomerge[data]'"
        ) from None
    for path in files:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                names = _class_names(file.schema_arrow.metadata or {})
                number = 0
                for batch in file.iter_batches(batch_size=ROWS):
                    for row in batch.to_pylist():
                        number += 1
                        yield Record(f"{path}, row {number}", named_classes(row, names, class_ids), path.parent)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise IsomergeError(
                f"{path} cannot be read as parquet ({first_line(error)}): fetch or write it again"
            ) from None


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of classes by column, as the package ``datasets`` writes them into a file; none where they cannot
    be read."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"].items()
        names_of = {key: feature.get("names") for key, feature in features if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        key: names
        for key, names in names_of.items()
        if isinstance(names, list) and all(isinstance(n, str) for n in names)
    }


def _package(ref: str, option: str) -> Any:
    """The optional package; its absence is told in the words of somebody who wanted this data."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        module = ref.partition(":")[0]
        function = f", no Python module {module} here or installed" if may_be_function(ref) else ""
        raise IsomergeError(
            f"{option} {ref}: no such file or folder{function}, and data sets by name need the package datasets: "
            "check the path, or pip install 'isomerge[data]'"
            if not saved_split(ref)[0]
            else f"{option} {ref}: a data set saved by the package datasets needs it: pip install 'isomerge[data]'"
        ) from None


def dataset_records(ref: str, class_ids: Mapping[str, int], option: str) -> Iterator[Record]:
    """A data set of the package ``datasets``: a folder that ``save_to_disk`` wrote, or ``name``, ``name:split`` or,
    of a data set of several configurations, ``name:configuration:split`` (the split may be empty).

    Class labels become the names that the data set gives them where the checkpoint (``class_ids``) knows them all.
    A data set of several splits is read at ``test``, else ``validation``, unless one is named (``folder:split`` as
    well).

    Raises:
        IsomergeError: the package is not installed, or it cannot load this data set.
    """
    package = _package(ref, option)
    folder, split = saved_split(ref)
    name, configuration, split = (ref, "", split) if folder else _named(ref)
    try:
        loaded = (
            package.load_from_disk(folder)
            if folder
            else package.load_dataset(
                name, *filter(None, [configuration]), split=split or None, **_without_code(package.load_dataset)
            )
        )
    except Exception as error:  # files, network, formats: as many types as there are data sets
        raise IsomergeError(
            f"{option} {ref}: no such file, and the package datasets cannot load it ({first_line(error)}); "
            "check the path, the name and the split, and of several configurations name one, as in "
            "name:configuration:split"
            if not folder
            else f"{option} {ref}: the package datasets cannot load this folder ({first_line(error)})"
        ) from None
    if isinstance(loaded, dict):
        loaded = loaded[chosen_split(loaded, split, f"{option} {ref}", folder or name)]
    elif folder and split:
        raise IsomergeError(f"{option} {ref}: the data set in {folder} has no splits: leave :{split} out")
    yield from _rows(f"{option} {ref}", loaded, class_ids)


def _named(ref: str) -> tuple[str, str, str]:
    """Name, configuration and split of ``name``, ``name:split`` and ``name:configuration:split``; empty where not
    told."""
    name, _, rest = ref.partition(":")
    configuration, colon, split = rest.rpartition(":")
    return (name, configuration, split) if colon else (name, "", rest)


def _without_code(load: Any) -> dict[str, bool]:
    """How a version of the package that still runs scripts of data sets (before 4) is told not to, nor to ask."""
    return {"trust_remote_code": False} if "trust_remote_code" in inspect.signature(load).parameters else {}


def _rows(where: str, rows: Any, class_ids: Mapping[str, int]) -> Iterator[Record]:
    features = getattr(rows, "features", None) or {}
    names = {key: getattr(feature, "names", None) for key, feature in features.items()}
    for number, row in enumerate(rows, 1):
        yield Record(f"{where}, example {number}", named_classes(row, names, class_ids))
