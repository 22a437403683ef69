"""NearSwap (alchemonaut 2024): the other model where it is near."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import convex
from isomerge.fusion.method_options import check_number, limited
from isomerge.fusion.registry import elementwise_method

NEAREST = 1e-6
"""Smallest difference that is divided by (mergekit's)."""


@elementwise_method
@limited(models=(1, 1), bound=convex)
def nearswap(tensors: Sequence[Tensor], base: Tensor, *, t: float) -> Tensor:
    """Every entry moves from the base to the other model by ``min(1, t / |theta - base|)`` of the way.

    So it moves by at most ``t``: entries that differ by less are swapped, others are moved by ``t``.

    Args:
        tensors: one tensor of any shape, float32 or float64, aligned.
        base: the base's.
        t: the largest change of an entry.

    Raises:
        IsomergeError: there is not exactly one model beside the base.
    """
    check_number(tensors, nearswap)
    other = tensors[0]
    share = (t / (base - other).abs_().clamp_min_(NEAREST)).clamp_(0, 1)
    return share * other + (1 - share) * base
