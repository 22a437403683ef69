"""What a match is given beside weights: data, opened and checked, and all files told from others."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.companions import files_of_model
from isomerge.data.examples import Examples
from isomerge.engine.idle import note
from isomerge.errors import IsomergeError

TOKENS = 128
"""Of an example of text, where ``--length`` does not say it."""

if TYPE_CHECKING:
    from isomerge.checkpoint.reader import Checkpoint
    from isomerge.engine.models import Model
    from isomerge.engine.pairs.match_options import Matching


def open_given(
    ref: str | Path | Examples,
    anchor: Model,
    matching: Matching,
    limit: int | None = None,
    *,
    option: str | None = None,
) -> Examples:
    """Examples through the anchor's tokenizer or image processor, no more than ``limit`` and the matching's own.

    Errors name ``option``; by default the one of the matching by which ``ref`` was given.

    Raises:
        IsomergeError: see `isomerge.data.opening.open_data`.
    """
    bounds = [n for n in (limit, matching.limit) if n is not None]
    if isinstance(ref, Examples):
        return ref.head(min(bounds)) if bounds else ref
    option = option or ("--data" if ref is matching.data or ref is not matching.learn else "--learn")
    least = min(bounds, default=None)
    return data_for(anchor.checkpoint, str(ref), limit=least, length=matching.length, option=option)


def data_for(
    checkpoint: Checkpoint, ref: str, *, limit: int | None = None, length: int = 128, option: str = "--data"
) -> Examples:
    """Examples through the tokenizer or processor of a checkpoint, or of a view, that are its own.

    For the arguments and errors see `isomerge.data.opening.open_data`.
    """
    from isomerge.checkpoint.companion_folder import companion_folder
    from isomerge.data.opening import open_data

    with companion_folder(checkpoint) as folder:
        found = open_data(ref, folder, limit=limit, length=length, config=checkpoint.config, option=option)
    if length != TOKENS and "pixel_values" in found.tensors and "input_ids" not in found.tensors:
        note("length", "these examples are images")
    return found


def check_data(matching: Matching, anchor: Model) -> None:
    """Read one example of everything that will be read, so that a dry run tells what is missing or does not fit.

    Raises:
        IsomergeError: data that cannot be read or do not fit, or labels that are asked for and not there.
    """
    for ref in (matching.data, matching.learn):
        if ref is not None:
            found = open_given(ref, anchor, matching, 1)
            if ref is matching.learn:
                check_labels(matching, found)


def check_labels(matching: Matching, examples: Examples) -> None:
    """Refuse data without labels where they are the target.

    Raises:
        IsomergeError: naming the option.
    """
    if matching.settings is not None and matching.settings.target == "labels" and not examples.labelled:
        raise IsomergeError("the data have no labels: learn with --learn-target distill")


def inputs_key(matching: Matching, anchor: Model) -> list[Any]:
    """What tells one match from another: options, and names, sizes and dates of all files that are read."""
    options = replace(matching, data=shown(matching.data), learn=shown(matching.learn))
    found: list[Any] = [repr(options)]
    for ref in (matching.data, matching.learn):
        found += data_key(ref, anchor, matching.limit)
    return [*found, *(file_stamp(file) for file in matching.stats)]


def data_key(ref: str | Path | Examples | None, model: Model, limit: int | None = None) -> list[Any]:
    """What tells data from others: their name, the files that they are read from, and those that travel with the model.

    A data set of the package ``datasets`` is told by its name, a Python function by its module's file, and examples in
    memory by their fingerprint alone.

    Args:
        ref: the data; None gives an empty key.
        model: the model whose tokenizer or processor reads them.
        limit: how many examples are read; None for all.
    """
    if ref is None or isinstance(ref, Examples):
        return [] if ref is None else [ref.fingerprint]
    found: list[Any] = [str(ref), *(file_stamp(path) for path in _files(str(ref), model, limit))]
    for name, x in sorted(model.checkpoint.companions().items()):  # tokenizer and image processor
        found.append(file_stamp(x) if isinstance(x, Path) else [name, sha256(x).hexdigest()])
    return found


def shown(ref: str | Path | Examples | None) -> str | None:
    """The name or path of data, or the fingerprint of examples in memory."""
    return ref.fingerprint if isinstance(ref, Examples) else None if ref is None else str(ref)


def paths_read(*refs: Any) -> tuple[Path, ...]:
    """The files and folders that some references name (data, statistics, alignments, specs); others are passed over."""
    found = (_path_of(str(ref)) for ref in refs if isinstance(ref, (str, Path)))
    return tuple(path for path in found if path is not None)


def files_read(models: Sequence[Model], *refs: Any) -> list[Path]:
    """What must stay as it is while models are read, and what some references name: files, and folders of which all is read."""
    folders = [file for model in models for file in files_of_model(model.checkpoint.folder)]
    return [*(file for model in models for file in model.checkpoint.files), *folders, *paths_read(*refs)]


def _files(ref: str, model: Model, limit: int | None) -> Iterator[Path]:
    from isomerge.data.inputs import Inputs
    from isomerge.data.pictures_named import pictures_named

    path = _path_of(ref)
    if path is None:
        return
    yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    inputs = Inputs(model.config)
    if inputs.images or inputs.pairs:
        yield from pictures_named(path, limit)


def _path_of(ref: str) -> Path | None:
    """The folder or file that a reference names, or the file of its Python function."""
    from isomerge.data.records import is_function
    from isomerge.data.splits import saved_split

    path = Path(os.path.expanduser(ref))
    path = Path(saved_split(str(path))[0] or path)
    if path.is_dir() or path.is_file():
        return path
    return _origin(ref.partition(":")[0]) if is_function(ref) else None


def _origin(module: str) -> Path | None:
    """The file of a Python module, beside the program or installed."""
    here = Path(*module.split(".")).with_suffix(".py")
    if here.is_file():
        return here
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module)
        if found is not None and found.origin and Path(found.origin).is_file():
            return Path(found.origin)
    return None


def file_stamp(path: str | Path) -> list[Any]:
    """Path, size and date (ns) of a file; its absence is told in words by whoever reads it."""
    path = Path(path)
    try:
        about = path.stat()
    except OSError:
        return [str(path), None]
    return [str(path.resolve()), about.st_size, about.st_mtime_ns]
