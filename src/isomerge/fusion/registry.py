"""The register of merge methods: a method is one pure function of tensors, its keyword arguments its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor

Method = Callable[..., "Tensor"]
_METHODS: dict[str, Method] = {}


def merge_method(function: Method) -> Method:
    """Register a function of aligned tensors under its name."""
    _METHODS[function.__name__] = function
    return function


def method(name: str) -> Method:
    """The method of that name.

    Raises:
        IsomergeError: there is none.
    """
    import isomerge.fusion.linear  # noqa: F401  (registers itself)

    if name not in _METHODS:
        from difflib import get_close_matches

        near = get_close_matches(name, _METHODS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise IsomergeError(f"--method {name}: no such merge method{hint} There are: {', '.join(sorted(_METHODS))}")
    return _METHODS[name]
