"""Model breadcrumbs (Davari and Belilovsky 2024): task vectors without their smallest and their largest entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.fusion.method_options import SHARE
from isomerge.fusion.registry import per_model
from isomerge.fusion.task_vectors import sparse_method
from isomerge.fusion.trimming import Sizes, Trim, parts_of
from isomerge.passes import Part


def middle(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float] = per_model(1.0),
    gamma: Sequence[float] = per_model(0.01),
    rescale: bool = False,
    **_: Any,
) -> list[Part | None]:
    """Of every task vector ``floor(density N)`` entries below the ``floor(gamma N)`` of largest magnitude; None: it
    is kept as it is. Of equal ones the earlier count as smaller.

    When too few lie below (density + gamma > 1), fewer outliers are left out, and the density is kept.

    Args:
        tensors, base: as they are stored, of one shape.
        density: the share of entries that each task vector keeps; at 1 it is kept as it is, outliers too.
        gamma: the share of outliers; less where ``density + gamma > 1``.
        rescale: restore the sum of magnitudes.
    """
    n = base.numel()

    def part(sizes: Sizes, share: float, outliers: float) -> Part:
        count = int(share * n)
        below = max(0, n - count - int(outliers * n))
        return Trim(sizes, below, below + count, rescale=rescale)

    return parts_of(tensors, base, density, part, gamma)


breadcrumbs = sparse_method(
    "breadcrumbs",
    middle,
    elects=False,
    normalize=False,
    gamma=SHARE,
    about="""Outliers and small entries dropped: ``base + lambda sum_m w_m (b_m * delta_m)``.

    The mask ``b_m`` drops the share ``gamma`` of the largest magnitudes, and of the smallest as many as leave
    ``density``.
    """,
)
breadcrumbs_ties = sparse_method(
    "breadcrumbs_ties",
    middle,
    elects=True,
    normalize=False,
    gamma=SHARE,
    about="Breadcrumbs' task vectors, with TIES' election of signs.",
)
