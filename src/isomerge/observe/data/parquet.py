"""Records of parquet files, as data sets lie on the Hub: read by pyarrow, a few rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.observe.data.records import Record, named_classes

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
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise IsomergeError(
                f"{path} cannot be read as parquet ({first[:160].rstrip('.')}): fetch or write it again"
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
