"""Records of the package `datasets`: of a data set that it saved to disk, or loads by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.observe.data.records import Record, may_be_function, named_classes
from isomerge.observe.data.splits import chosen_split, saved_split


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
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise IsomergeError(
            f"{option} {ref}: no such file, and the package datasets cannot load it ({first[:160].rstrip('.')}); "
            "check the path, the name and the split, and of several configurations name one, as in "
            "name:configuration:split"
            if not folder
            else f"{option} {ref}: the package datasets cannot load this folder ({first[:160].rstrip('.')})"
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


def _without_code(load: Any) -> dict[str, Any]:
    """How a version of the package that still runs scripts of data sets (before 4) is told not to, nor to ask."""
    return {"trust_remote_code": False} if "trust_remote_code" in inspect.signature(load).parameters else {}


def _rows(where: str, rows: Any, class_ids: Mapping[str, int]) -> Iterator[Record]:
    features = getattr(rows, "features", None) or {}
    names = {key: getattr(feature, "names", None) for key, feature in features.items()}
    for number, row in enumerate(rows, 1):
        yield Record(f"{where}, example {number}", named_classes(row, names, class_ids))
