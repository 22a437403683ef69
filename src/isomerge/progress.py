"""Who is told of progress."""

from __future__ import annotations

from collections.abc import Callable

Observer = Callable[[str, int, int], None]
"""Told of progress: what is done now, bytes done, bytes in all."""


def quiet(what: str, done: int, total: int) -> None:
    """An observer that says nothing."""
