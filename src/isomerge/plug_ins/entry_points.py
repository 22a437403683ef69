"""Entry points of installed packages that add to isomerge, by the name that is asked for, loaded only then; and
where code comes from."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from typing import Any

from isomerge.errors import own_code
from isomerge.plug_ins.modules import code_digest, imported_as, is_file, is_installed, module_of

METHODS = "isomerge.methods"
"""The group of merge methods: ``NAME = "package.module"``, a module that registers the method NAME."""
DATA = "isomerge.data"
"""The group of readers of data: ``NAME = "package.module:function"``, asked for data named ``NAME:...``."""
ARCHITECTURES = "isomerge.architectures"
"""The group of spec folders: ``NAME = "package.folder"``, a folder of a package that holds ``*.spec`` files."""


def package_of(point: EntryPoint) -> str:
    """The package of an entry point and its version, such as ``my_package 0.3``."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "a package without metadata"


def origin(point: EntryPoint) -> str:
    """Where an entry point comes from, in words: package, version and target."""
    return f"{package_of(point)} ({point.group}: {point.name} = {point.value})"


def plug_ins(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a group by name, none of them loaded; a name may be taken by several packages."""
    named: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=group), key=origin):
        points = named.setdefault(point.name, [])
        if origin(point) not in map(origin, points):  # one folder may stand on the path twice
            points.append(point)
    return named


def load(point: EntryPoint) -> Any:
    """Import what an entry point names.

    Raises:
        IsomergeError: it fails, naming package, entry point and exception.
    """
    with own_code(f"the plug-in of {origin(point)} cannot be imported", "mend or uninstall that package"):
        return point.load()


def code_of(function: Any, points: Sequence[EntryPoint]) -> list[str]:
    """Digests of a plug-in's code, for keys of runs: of the modules that entry points name, and of the one that the
    function is from. The two differ where a package gives another's function some arguments."""
    named = dict.fromkeys([*(point.module for point in points), module_of(function)])
    return [code_digest(module) for module in named]


@lru_cache(1)  # the files of every package are read, half a second's work
def _packages(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """The packages that hold every top-level module, as long as modules are looked for along one path."""
    return packages_distributions()


def module_source(module: str) -> str:
    """Where code comes from, in words: the file that was imported, the package with its version, or the module.

    Args:
        module: its name in `sys.modules`.
    """
    own = imported_as(module)
    if own is not None and is_file(own.name):
        return own.name
    top = module.partition(".")[0]
    if is_installed(top) and (packages := _packages(tuple(sys.path)).get(top, [])):
        return f"{packages[0]} {version(packages[0])}"
    return getattr(sys.modules.get(module), "__file__", None) or f"module {module}"
