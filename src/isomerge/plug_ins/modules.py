"""Modules that a command is asked to import (``--import``): by their names, or files by their paths."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from isomerge.errors import IsomergeError, own_code

_MODULES: dict[str, Module] = {}
"""All that were imported, by their names in `sys.modules`."""
_TEXTS: WeakKeyDictionary[ModuleType, dict[str, bytes]] = WeakKeyDictionary()
"""Of loaded modules: a text that is changed later is not what runs in this process."""
_REGISTERED: dict[tuple[str, str], list[tuple[str, str]]] = {}
"""By kind and name, whose it is: see `_makers`."""
_NOT_OWN = sys.stdlib_module_names | {"isomerge"}
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
    """Of its code, when it was imported: see `code_digest`."""
    folder: str
    """From where it was importable: the current folder, or the file's."""
    text: bytes = field(default=b"", repr=False)
    """Of a file: where it is another one, the file is run anew."""


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
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # one that it imports itself
            raise IsomergeError(
                f"--import {name}: there is no module {error.name}: install its package, or give the path of a "
                f"file that ends in .py"
            ) from None
        _MODULES[name] = Module(name, name, code_digest(name), folder)
    return _MODULES[name]


def _import_file(path: Path) -> Module:
    if not path.is_file() or path.suffix != ".py":
        raise IsomergeError(
            f"--import {path}: {'no file of Python' if path.exists() else 'no such file'}: give the path of a file "
            f"that ends in .py, or the name of a module"
        )
    try:
        text = path.read_bytes()
    except OSError as error:
        raise IsomergeError(f"--import {path}: it cannot be read ({error.strerror})") from None
    stem, place = re.sub(r"\W", "_", path.stem), hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"isomerge_import_{place}_{stem}"
    known = _MODULES.get(name)
    if known is not None and known.text == text and name in sys.modules:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _MODULES[name] = module, Module(str(path), name, "", str(path.parent), text)
    try:
        with _going_on(name, str(path.parent)):
            exec(compile(text, str(path), "exec"), module.__dict__)
            _MODULES[name] = replace(_MODULES[name], sha256=code_digest(name))
    except BaseException:
        del sys.modules[name], _MODULES[name]
        if known is not None:
            _MODULES[name] = known  # its text is another one: it is run anew
        raise
    return _MODULES[name]


def code_digest(module: str) -> str:
    """The sha256 of the code that a module consists of: its text (of a package, of all its files), and the same of
    all that it imports, within functions too, from outside of installed packages and of Python: there another text
    has the same version. Of what is loaded it is the text that was there when this was asked first.

    Args:
        module: its name in `sys.modules`, or as it would be imported.
    """
    texts = dict(_texts_of(module))
    waiting = [*_imported_by(module, texts), module.partition(".")[0]]
    seen = {module}
    while waiting:
        name = waiting.pop()
        if name in seen or name in _NOT_OWN:
            continue
        seen.add(name)
        more = {} if is_installed(name) else _texts_of(name)
        waiting += _imported_by(name, more)
        texts |= more
    digest = hashlib.sha256()
    for file, text in sorted(texts.items()):
        digest.update(b"%s\0%d\0%s" % (file.encode(), len(text), text))
    return digest.hexdigest()


def _loaded(name: str) -> ModuleType | None:
    """A module that is loaded; some put other things in their places."""
    module = sys.modules.get(name)
    return module if isinstance(module, ModuleType) else None


def _places_of(name: str) -> tuple[list[Path], Path | None]:
    """The folders of a package, and the file of a module; neither of what is built in or not there."""
    module, spec = _loaded(name), None
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name) if module is None else module.__spec__
    folders = getattr(module, "__path__", None) or getattr(spec, "submodule_search_locations", None) or ()
    file = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    return [Path(folder) for folder in folders], Path(file) if file and os.path.isfile(file) else None


def is_installed(name: str) -> bool:
    """Whether a top-level module lies among installed packages, beside their lists of files."""
    folders, file = _places_of(name)
    beside = [place.resolve().parent for place in (*folders, *([] if file is None or folders else [file]))]
    return any(
        {"site-packages", "dist-packages"} & {*folder.parts} or any(folder.glob("*.dist-info/RECORD"))
        for folder in beside
    )


def _texts_of(name: str) -> dict[str, bytes]:
    """A module's files, by the module and their places in it; of what was written at a prompt the functions."""
    module = _loaded(name)
    if module is not None and module in _TEXTS:
        return _TEXTS[module]
    folders, file = _places_of(name)
    files = {f"{name}/{path.relative_to(folder)}": path for folder in folders for path in folder.rglob("*.py")}
    texts = {}
    for place, path in (files or ({} if file is None else {name: file})).items():
        with contextlib.suppress(OSError):
            texts[place] = path.read_bytes()
    if module is not None and texts:
        _TEXTS[module] = texts
    own = [] if module is None or texts else [x for x in vars(module).values() if isinstance(x, FunctionType)]
    return texts or {f"{name}.{x.__qualname__}": _source_of(x) for x in own if x.__module__ == name}


def _source_of(function: FunctionType) -> bytes:
    """The text of a function, or what it was compiled to."""
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = function.__code__
        return (
            code.co_code + repr((code.co_names, [x for x in code.co_consts if not hasattr(x, "co_code")])).encode()
        )


def _imported_by(name: str, texts: Mapping[str, bytes]) -> set[str]:
    """The top-level modules that texts import, and those of what a loaded module has imported by other ways."""
    names: set[str] = set()
    for text in texts.values():
        with contextlib.suppress(SyntaxError, ValueError):  # compiled, or another Python's
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names.add(node.module or "")
                elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                    ("import_module", "__import__")
                ):
                    named = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
                    names |= {name for name in named if isinstance(name, str)}
    for value in list(vars(_loaded(name) or object).values()):
        if isinstance(value, ModuleType):
            names.add(value.__name__)
        elif isinstance(value, FunctionType | type):
            names.add(value.__module__)
    return {imported.partition(".")[0] for imported in names}


def called(function: Any) -> Any:
    """The function that is called by one with some arguments given (`functools.partial`); any other itself."""
    while isinstance(function, partial):
        function = function.func
    return function


def module_of(function: Any) -> str:
    """The module that the function that is called is from."""
    return called(function).__module__


def name_of(function: Any) -> str:
    """The name by which a function is registered.

    Raises:
        IsomergeError: it has none of its own.
    """
    if isinstance(name := getattr(function, "__name__", None), str):
        return name
    raise IsomergeError(
        f"a {type(function).__name__} of module {module_of(function)} is registered and has no name: give it one "
        "(its attribute __name__)"
    )


def check_one(kind: str, name: str, function: Any, there: Any) -> None:
    """Refuse a name that another module or file has registered; the later of one takes the earlier one's place.

    A module-level function is its module's. One with some arguments given, or that another function made, may be
    registered by any module: it is the module's as well whose lines run.

    Args:
        kind: what is registered, in words.
        name: the name.
        function: what is to have it.
        there: what has it; None: nothing.

    Raises:
        IsomergeError: naming both.
    """
    makers = _makers(function)
    before = _REGISTERED.get((kind, name), []) if there is not None else []
    if any(one[0] != other[0] and one[1] != other[1] for one, other in zip(makers, before, strict=False)):
        takers = " and ".join(_called(of[-1][0]) for of in (makers, before))
        raise IsomergeError(f"{kind} {name}: {takers} both register that name; rename one")
    _REGISTERED[kind, name] = makers


def _makers(function: Any) -> list[tuple[str, str]]:
    """The module and file that a function is from, and those that register it now."""
    outer = called(function)
    inner = inspect.unwrap(outer)
    code = getattr(inner, "__code__", None)
    own = (str(inner.__module__), os.path.realpath(code.co_filename) if code else str(inner.__module__))
    if outer is function and code and "<locals>" not in function.__qualname__:
        return [own, own]
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return [own, own]
    return [own, (frame.f_globals["__name__"], os.path.realpath(frame.f_code.co_filename))]


def _called(module: str) -> str:
    """What a module is called where two register one name: its file, where it was imported as one."""
    own = imported_as(module)
    return own.name if own else "isomerge itself" if module.partition(".")[0] == "isomerge" else module


def imported_as(module: str) -> Module | None:
    """What was imported for a command under a name of `sys.modules`, or around it; None of all other modules."""
    names = [name for name in _MODULES if f"{module}.".startswith(f"{name}.")]
    return _MODULES[max(names, key=len)] if names else None
