"""What a command has of plug-ins: the modules that it was given to import, and all plug-ins that it uses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from isomerge.plug_ins.modules import Module, import_module
from isomerge.records import Json

Used = dict[tuple[str, str], str]
"""By kind (``method``, ``reader``, ``architecture``) and name: the package and its version, or the file."""


@dataclass(frozen=True)
class _Command:
    modules: dict[str, Module]
    used: Used


_command: ContextVar[_Command | None] = ContextVar("command", default=None)


@contextmanager
def importing(names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> Iterator[None]:
    """A command, of either door, that imports modules before anything is looked up; one within another has what the
    outer one has.

    Raises:
        IsomergeError: a module is missing, or fails.
    """
    outer = _command.get()
    modules = {} if outer is None else dict(outer.modules)
    mark = _command.set(_Command(modules, {} if outer is None else outer.used))
    try:
        for name in [names] if isinstance(names, (str, os.PathLike)) else names or ():
            module = import_module(name)
            modules[module.name] = module
        yield
    finally:
        _command.reset(mark)


def given_modules() -> list[Module]:
    """The modules that the command was given to import, in order."""
    command = _command.get()
    return [] if command is None else list(command.modules.values())


def use(kind: str, name: str, source: str) -> None:
    """Note that the command uses a plug-in.

    Args:
        kind: ``method``, ``reader`` or ``architecture``.
        name: the method's, the reader's, or the ``model_type``.
        source: the package and its version, or the file.
    """
    if (command := _command.get()) is not None:
        command.used[kind, name] = source


def used() -> list[dict[str, str]]:
    """The plug-ins that the command has used so far, as reports list them."""
    command = _command.get()
    entries = {} if command is None else command.used
    return [{"kind": kind, "name": name, "source": source} for (kind, name), source in entries.items()]


def with_used(report: Json) -> Json:
    """A report, which names the plug-ins under ``plug_ins``, and under ``imports`` the modules and files that were
    imported, where there are some."""
    if modules := given_modules():
        report["imports"] = [module.name for module in modules]
    if rows := used():
        report["plug_ins"] = rows
    return report


def sentences(rows: Sequence[dict[str, str]]) -> list[str]:
    """The plug-ins of a report in words, such as ``method trimmed_mean from my_package 0.3``."""
    return [f"{row['kind']} {row['name']} from {row['source']}" for row in rows]
