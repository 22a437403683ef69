"""NearSwap (alchemonaut 2024): the other model where it is near."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.fusion.bounds import convex
from isomerge.fusion.linear import weighted
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method
from isomerge.passes import Entries, Entrywise

NEAREST = 1e-6
"""Smallest difference that is divided by (mergekit's)."""


def _swapped(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    gap, of = abs(z - votes), type(z)
    share = of(1) / (gap if gap >= q else q) * p
    share = min(max(share, of(0)), of(1))
    return share * votes + (of(1) - share) * z


SWAPPED = Entrywise(weighted, _swapped)


@entries_method
@limited(models=(1, 1), bound=convex)
def nearswap(tensors: Sequence[Tensor], base: Tensor, *, t: float) -> Entries:
    """Every entry moves from the base to the other model by ``min(1, t / |theta - base|)`` of the way.

    So it moves by at most ``t``: entries that differ by less are swapped, others are moved by ``t``.

    Args:
        tensors: one tensor of any shape, float32 or float64, aligned.
        base: the base's.
        t: the largest change of an entry.

    Raises:
        IsomergeError: there is not exactly one model beside the base.
    """
    return SWAPPED([[1.0]], (t, NEAREST), subtract=False)
