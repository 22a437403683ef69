"""How many models a method merges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.fusion.options import limits_of


def check_number(tensors: Sequence[Any], method: Callable[..., Any]) -> None:
    """Refuse too few or too many tensors for a method's function (the base is not counted).

    Raises:
        IsomergeError: see `check_count`.
    """
    check_count(len(tensors), method.__name__, limits_of(method).models)


def check_count(count: int, method: str, models: tuple[int, int | None]) -> None:
    """Refuse too few or too many models (the base is not counted).

    Args:
        count: how many there are.
        method: its name.
        models: the least and the most that it merges.

    Raises:
        IsomergeError: saying how many the method takes.
    """
    least, most = models
    if count >= least and (most is None or count <= most):
        return
    wanted = f"{least} or more models" if most is None else f"exactly {least} model{'s' if least > 1 else ''}"
    raise IsomergeError(
        f"--method {method} merges {wanted} (a base not counted), but {count} were given: change the list of models"
    )
