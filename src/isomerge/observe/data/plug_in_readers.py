"""Readers of data of others: ``NAME:...`` is read by the entry point NAME of ``isomerge.data``, or by the function
NAME that a module has registered with `data_reader`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from isomerge.errors import IsomergeError, own_code
from isomerge.observe.data.examples import Examples
from isomerge.plug_ins.command import use
from isomerge.plug_ins.entry_points import DATA, code_of, load, module_source, origin, package_of, plug_ins
from isomerge.plug_ins.modules import check_one, module_of, name_of

F = TypeVar("F", bound=Callable[..., Any])
_READERS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Reader:
    """A reader of data and where it comes from, in words."""

    function: Callable[..., Any]
    origin: str
    source: str
    """The package and its version, or the file."""


def data_reader(function: F) -> F:
    """Register a function ``(ref, folder, limit, length, config) -> Examples | None`` as the reader of all data
    that are named ``NAME:...``, where NAME is the function's.

    Raises:
        IsomergeError: another module has a reader of that name, or the function has no name.
    """
    name = name_of(function)
    check_one("reader", name, function, _READERS.get(name))
    _READERS[name] = function
    return function


def reader_of(ref: str) -> Reader | None:
    """The reader of data of that name, whose package is imported only now; None where there is none.

    Args:
        ref: ``NAME:...``.

    Raises:
        IsomergeError: two have that name, or a package cannot be imported, or names no function.
    """
    name, colon, _ = ref.partition(":")
    points = plug_ins(DATA).get(name, []) if colon else []
    registered = _READERS.get(name) if colon else None
    takers = [origin(point) for point in points]
    function = load(points[0]) if points else registered
    if registered is not None and function is not registered:
        takers.append(module_source(module_of(registered)))
    if len(takers) > 1:
        raise IsomergeError(
            f"{ref}: {' and '.join(takers)} both have a reader of that name; uninstall or rename one"
        )
    if function is None and not points:
        return None
    if not callable(function):
        raise IsomergeError(
            f"{ref}: the plug-in of {takers[0]} is no function: let its entry point name module:function"
        )
    source = package_of(points[0]) if points else module_source(module_of(function))
    return Reader(function, takers[0] if points else source, source)


def reader_key(ref: str) -> list[str]:
    """What tells one reader's code from another's, for keys of runs; empty where no plug-in reads ``ref``."""
    reader = reader_of(ref)
    if reader is None:
        return []
    return [reader.source, *code_of(reader.function, plug_ins(DATA).get(ref.partition(":")[0], []))]


def plug_in_examples(
    ref: str, folder: Path, limit: int | None, length: int, config: Mapping[str, Any]
) -> Examples | None:
    """Examples of a plug-in's reader; None where there is none for ``ref``, or it declines.

    Args:
        ref: ``NAME:...``, of which NAME is an entry point or a registered function.
        folder: the checkpoint.
        limit: no more than so many examples, the first ones.
        length: tokens per example of text.
        config: the checkpoint's parsed config.json.

    Raises:
        IsomergeError: two have a reader of that name, or one cannot be imported, is no function, fails, returns
            something else than `Examples`, none, or more than ``limit``; naming the package or file.
    """
    reader = reader_of(ref)
    if reader is None:
        return None
    with own_code(f"{ref}: the reader of {reader.origin} fails"):
        examples = reader.function(ref, folder, limit, length, config)
    if examples is None:
        return None
    if not isinstance(examples, Examples):
        raise IsomergeError(
            f"{ref}: the reader of {reader.origin} returns {type(examples).__name__}, not Examples or None"
        )
    if not examples.tensors or not len(examples):
        raise IsomergeError(f"{ref}: the reader of {reader.origin} returns no examples: name other data")
    if limit is not None and len(examples) > limit:
        raise IsomergeError(
            f"{ref}: the reader of {reader.origin} returns {len(examples)} examples, not {limit} at most: mend it"
        )
    use("reader", ref.partition(":")[0], reader.source)
    return examples
