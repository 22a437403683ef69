"""The Python API: the commands as functions, on paths, hub ids, open checkpoints or live modules.

A lazy door: a function's module, and torch with it, is imported when the function is first used. Type checkers and
editors read the signatures in ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

from isomerge.doors import functions

_MODULES = {name: f"isomerge.api.{theme}" for name, theme in functions().items()}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'isomerge.api' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
