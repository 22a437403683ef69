"""Headers of statistics files, read and checked in one place; whether a file is of a model's very weights is
checked behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model

FORMAT = "isomerge-statistics"
VERSION = 1


def read_statistics_header(path: str | Path, model: Model) -> tuple[dict[str, Any], frozenset[str]]:
    """The header of a statistics file and the names of its tensors; no tensor is read, nor a weight of the model.

    Raises:
        IsomergeError: no such file, none of ours, one of another version, or one for another architecture than
            ``model``'s.
    """

    try:
        with safe_open(str(path), "pt") as file:
            header = json.loads((file.metadata() or {}).get("isomerge", "{}"))
            names = frozenset(file.keys())
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise IsomergeError(
            f"{path}: not a readable statistics file ({error}): make one with isomerge stats"
        ) from None
    header = header if isinstance(header, dict) else {}
    if header.get("format") != FORMAT:
        raise IsomergeError(f"{path}: not a statistics file of isomerge: make one with isomerge stats")
    if header.get("version") != VERSION:
        raise IsomergeError(
            f"{path}: version {header.get('version')} of the format, but this program reads {VERSION}: make it "
            "again with isomerge stats"
        )
    if header.get("model_type") != model.spec.model_type:
        raise IsomergeError(
            f"{path}: made for {header.get('model_type')}, but {model.ref} is {model.spec.model_type}"
        )
    return header, names


def check_statistics(files: Sequence[str], models: Sequence[Model]) -> None:
    """Read the headers of statistics files, one per model, before anything is written.

    Raises:
        IsomergeError: see `read_statistics_header`; or files of different data.
    """
    headers = [read_statistics_header(file, model)[0] for file, model in zip(files, models, strict=True)]
    check_same_data(files, [header.get("rows_of") for header in headers])


def check_same_data(files: Sequence[str], rows_of: Sequence[Any]) -> None:
    """Refuse statistics files whose rows do not belong together.

    Args:
        files: of statistics.
        told: which rows each one has (`isomerge.observe.stats.taps.pairing`).

    Raises:
        IsomergeError: naming the first file and the one that differs from it.
    """
    for file, rows in zip(files[1:], rows_of[1:], strict=True):
        if rows == rows_of[0]:
            continue
        if lacking := [name for name, named in ((files[0], rows_of[0]), (file, rows)) if not named]:
            raise IsomergeError(
                f"{lacking[0]} has no rows of activations: make it with --kinds activations,regmean"
            )
        if str(rows).split()[1:] != str(rows_of[0]).split()[1:]:
            raise IsomergeError(
                f"{files[0]} and {file} have rows that were chosen otherwise: make both with the same --rows "
                f"and --batch-size"
            )
        raise IsomergeError(
            f"{files[0]} and {file} are of different data: make both with the same --data, --limit and --length"
        )
