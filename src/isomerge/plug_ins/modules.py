"""Modules that a command is asked to import (``--import``): by their names, or files by their paths."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from isomerge.errors import IsomergeError, own_code

_MODULES: dict[str, Module] = {}
"""All that were imported, by their names in `sys.modules`."""
_under_way: ContextVar[str | None] = ContextVar("under_way", default=None)
"""The name in `sys.modules` of what is being imported for a command."""


@dataclass(frozen=True)
class Module:
    """A module that was imported for a command."""

    name: str
    """As users name it: of a file the absolute path."""
    module: str
    """Its name in `sys.modules`."""
    sha256: str
    """Of its text; of a package, of all its Python files."""
    folder: str
    """From where it was importable: the current folder, or the file's."""


def is_file(name: str) -> bool:
    """Whether ``--import`` takes a name for the path of a file."""
    return name.endswith(".py") or os.sep in name


def plain_name(name: str | os.PathLike[str]) -> str:
    """By what two names of one module are known as one: a file's real path, or the module's name."""
    name = os.fspath(name)
    return os.path.realpath(os.path.expanduser(name)) if is_file(name) else name


@contextlib.contextmanager
def importable(folder: str) -> Iterator[None]:
    """Python finds modules in this folder first."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def under_way() -> str | None:
    """The name in `sys.modules` of the module that is being imported for a command, on whose behalf code runs."""
    return _under_way.get()


@contextlib.contextmanager
def _going_on(module: str, folder: str) -> Iterator[None]:
    """A module is imported, with its folder on Python's path."""
    mark = _under_way.set(module)
    try:
        with importable(folder):
            yield
    finally:
        _under_way.reset(mark)


def import_module(name: str | os.PathLike[str], folder: str | None = None) -> Module:
    """Import a module, once in a process; a file whose text has changed is run anew.

    Args:
        name: a module's, or the path of a file.
        folder: where a module may lie, beside Python's path; the current folder by default.

    Raises:
        IsomergeError: there is no such module or file, or it fails.
    """
    name = plain_name(name)
    try:
        with own_code(f"--import {name}: it fails when it is imported"):
            return _import_file(Path(name)) if is_file(name) else _import_name(name, folder or os.getcwd())
    except IsomergeError as error:
        if error.sentence.startswith("--import "):
            raise
        raise IsomergeError(f"--import {name}: {error.sentence}") from error


def _import_name(name: str, folder: str) -> Module:
    if not name:
        raise IsomergeError("--import is empty: give the name of a module, or the path of a file that ends in .py")
    if not all(part.isidentifier() for part in name.split(".")):
        raise IsomergeError(
            f"--import {name}: this is no module's name: write it as package.module, or give the path of a file "
            f"that ends in .py"
        )
    if name in _MODULES and name in sys.modules:
        return _MODULES[name]
    with _going_on(name, folder):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # one that it imports itself
            raise IsomergeError(
                f"--import {name}: there is no module {error.name}: install its package, or give the path of a "
                f"file that ends in .py"
            ) from None
    _MODULES[name] = Module(name, name, _digest_of(module), folder)
    return _MODULES[name]


def _import_file(path: Path) -> Module:
    if not path.is_file() or path.suffix != ".py":
        raise IsomergeError(
            f"--import {path}: {'no file of Python' if path.exists() else 'no such file'}: give the path of a file "
            f"that ends in .py, or the name of a module"
        )
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise IsomergeError(f"--import {path}: it cannot be read ({error.strerror})") from None
    stem, place = re.sub(r"\W", "_", path.stem), hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"isomerge_import_{place}_{stem}"
    known = _MODULES.get(name)
    if known is not None and known.sha256 == digest and name in sys.modules:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    before = _MODULES.get(name)
    sys.modules[name], _MODULES[name] = module, Module(str(path), name, digest, str(path.parent))
    try:
        with _going_on(name, str(path.parent)):
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name], _MODULES[name]
        if before is not None:
            _MODULES[name] = before  # its text is another one: it is run anew
        raise
    return _MODULES[name]


def _digest_of(module: ModuleType) -> str:
    """Of a module's text; of a package, of all its Python files by their names."""
    digest = hashlib.sha256()
    for folder in map(Path, getattr(module, "__path__", ())):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    own = getattr(module, "__file__", None)
    if own is not None and not hasattr(module, "__path__") and Path(own).is_file():
        digest.update(Path(own).read_bytes())
    return digest.hexdigest()


def is_one(first: Any, second: Any) -> bool:
    """Whether two functions come from one module or file, so that the later one takes the earlier one's place."""
    if first.__module__ == second.__module__:
        return True
    files = [getattr(getattr(function, "__code__", None), "co_filename", None) for function in (first, second)]
    return None not in files and os.path.realpath(str(files[0])) == os.path.realpath(str(files[1]))


def imported_as(module: str) -> Module | None:
    """What was imported for a command under a name of `sys.modules`, or around it; None of all other modules."""
    names = [name for name in _MODULES if f"{module}.".startswith(f"{name}.")]
    return _MODULES[max(names, key=len)] if names else None
