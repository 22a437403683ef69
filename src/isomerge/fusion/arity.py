"""How many models a method merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isomerge.errors import IsomergeError


def check_number(tensors: Sequence[Any], method: str, least: int, most: int | None = None) -> None:
    """Refuse too few or too many models (the base is not counted).

    Raises:
        IsomergeError: saying how many the method takes.
    """
    if len(tensors) >= least and (most is None or len(tensors) <= most):
        return
    wanted = f"{least} or more models" if most is None else f"exactly {least} model{'s' if least > 1 else ''}"
    raise IsomergeError(
        f"--method {method} merges {wanted} (a base not counted), but {len(tensors)} were given: change the list of models"
    )
