"""The files that a run reads beside weights: which they are, and what tells them from others."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companions import files_of_model
from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.records import LINES, PICTURED, TABLES, file_records, is_function
from isomerge.observe.data.splits import saved_split
from isomerge.plug_ins.modules import code_digest, importable


def data_key(ref: str | Path | Examples | None, model: Model, limit: int | None = None) -> list[Any]:
    """What tells data from others: their name, the files that they are read from, and those that travel with the
    model.

    A data set of the package ``datasets`` is told by its name, a Python function and a plug-in's reader by their
    modules' code, and examples in memory by their fingerprint alone.

    Args:
        ref: the data; None gives an empty key.
        model: the model whose tokenizer or processor reads them.
        limit: how many examples are read; None for all.
    """
    if ref is None or isinstance(ref, Examples):
        return [] if ref is None else [ref.fingerprint]
    key: list[Any] = [str(ref), *(file_stamp(path) for path in _files(str(ref), model, limit))]
    if not os.path.exists(os.path.expanduser(ref)):  # a file or folder comes before a reader of its name
        from isomerge.observe.data.plug_in_readers import reader_key

        key += reader_key(str(ref))
        if is_function(str(ref)):
            with importable(os.getcwd()):
                key.append(code_digest(str(ref).partition(":")[0]))
    for name, x in sorted(model.checkpoint.companions().items()):  # tokenizer and image processor
        key.append(file_stamp(x) if isinstance(x, Path) else [name, sha256(x).hexdigest()])
    return key


def shown(ref: str | Path | Examples | None) -> str | None:
    """The name or path of data, or the fingerprint of examples in memory."""
    return ref.fingerprint if isinstance(ref, Examples) else None if ref is None else str(ref)


def paths_read(*refs: Any) -> tuple[Path, ...]:
    """The files and folders that some references name (data, statistics, alignments, specs); others are passed
    over."""
    paths = (_path_of(str(ref)) for ref in refs if isinstance(ref, (str, Path)))
    return tuple(path for path in paths if path is not None)


def files_read(models: Sequence[Model], *refs: Any) -> list[Path]:
    """What must stay as it is while models are read, and what some references name: files, and folders of which all
    is read."""
    folders = [file for model in models for file in files_of_model(model.checkpoint.folder)]
    return [*(file for model in models for file in model.checkpoint.files), *folders, *paths_read(*refs)]


def _files(ref: str, model: Model, limit: int | None) -> Iterator[Path]:
    path = _path_of(ref)
    if path is None:
        return
    yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    inputs = Inputs(model.config)
    if inputs.images or inputs.pairs:
        yield from pictures_named(path, limit)


def _path_of(ref: str) -> Path | None:
    """The folder or file that a reference names, or the file of its Python function."""
    path = Path(os.path.expanduser(ref))
    path = Path(saved_split(str(path))[0] or path)
    if path.is_dir() or path.is_file():
        return path
    return _origin(ref.partition(":")[0]) if is_function(ref) else None


def _origin(module: str) -> Path | None:
    """The file of a Python module, beside the program or installed."""
    beside = Path(*module.split(".")).with_suffix(".py")
    if beside.is_file():
        return beside
    with contextlib.suppress(ImportError, ValueError):
        module_spec = importlib.util.find_spec(module)
        if module_spec is not None and module_spec.origin and Path(module_spec.origin).is_file():
            return Path(module_spec.origin)
    return None


def file_stamp(path: str | Path) -> list[Any]:
    """Path, size and date (ns) of a file; its absence is told in words by whoever reads it."""
    path = Path(path)
    try:
        about = path.stat()
    except OSError:
        return [str(path), None]
    return [str(path.resolve()), about.st_size, about.st_mtime_ns]


def pictures_named(path: Path, limit: int | None = None) -> Iterator[Path]:
    """The images that the records of a file, or of the files of a folder, name, whether they are there or not.

    Args:
        path: a file or a folder; of other forms than `LINES` and `TABLES` nothing comes.
        limit: how many records are looked at; None for all.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    records = (r for file in files if file.suffix.lower() in (*LINES, *TABLES) for r in file_records(file))
    with suppress(IsomergeError):  # told by whoever reads the data
        for record in islice(records, limit):
            for name in PICTURED:
                image = record.fields.get(name)
                if isinstance(image, str) and image and record.folder is not None:
                    yield record.folder / os.path.expanduser(image)
