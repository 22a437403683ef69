"""Entry points of installed packages that add to isomerge, by the name that is asked for, loaded only then."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from isomerge.errors import IsomergeError

METHODS = "isomerge.methods"
"""The group of merge methods: ``NAME = "package.module"``, a module that registers the method NAME."""
DATA = "isomerge.data"
"""The group of readers of data: ``NAME = "package.module:function"``, asked for data named ``NAME:...``."""


def origin(point: EntryPoint) -> str:
    """Where an entry point comes from, in words: package, version and target."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package without metadata"
    return f"{package} ({point.group}: {point.name} = {point.value})"


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
    try:
        return point.load()
    except IsomergeError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise IsomergeError(
            f"the plug-in of {origin(point)} cannot be imported ({what}): mend or uninstall that package"
        ) from error
