"""Model breadcrumbs (Davari and Belilovsky 2024): task vectors without their smallest and their largest entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import CONSENSUS, SHARE, limited
from isomerge.fusion.registry import entries_method, per_model
from isomerge.fusion.sparsity import check_share
from isomerge.fusion.task_vectors import add_task_vectors
from isomerge.fusion.trimming import Sizes, Trim, parts_of
from isomerge.passes import Entries, Part


def middle(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float],
    gamma: Sequence[float],
    rescale: bool,
    **_: Any,
) -> list[Part | None]:
    """Of every task vector ``floor(density N)`` entries below the ``floor(gamma N)`` of largest magnitude; None: it
    is kept as it is. Of equal ones the earlier count as smaller.

    When too few lie below (density + gamma > 1), fewer outliers are left out, and the density is kept.

    Args:
        tensors, base: as they are stored, of one shape.
        density, gamma, rescale: as of `breadcrumbs`.

    Raises:
        IsomergeError: a density or gamma outside of [0, 1].
    """
    for outliers in gamma:
        check_share("gamma", outliers)
    n = base.numel()

    def part(sizes: Sizes, share: float, outliers: float) -> Part:
        count = int(share * n)
        below = max(0, n - count - int(outliers * n))
        return Trim(sizes, below, below + count, rescale=rescale)

    return parts_of(tensors, base, density, part, gamma)


@entries_method(select=middle)
@limited(density=SHARE, gamma=SHARE, bound=task_vectors)
def breadcrumbs(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    gamma: Sequence[float] = per_model(0.01),
    normalize: bool = False,
    rescale: bool = False,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    selection: Sequence[Part | None] | None = None,
) -> Entries:
    """Outliers and small entries dropped: ``base + lambda sum_m w_m (b_m * delta_m)``.

    The mask ``b_m`` drops the share ``gamma`` of the largest magnitudes, and of the smallest as many as leave
    ``density``.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        density: the share of entries that each task vector keeps; at 1 it is kept as it is, outliers too.
        gamma: the share of outliers; less where ``density + gamma > 1``.
        normalize: divide by the sum of the weights.
        rescale: restore the sum of magnitudes.
        lambda_: scales what is added.
        int8_mask: accepted for mergekit's recipes; the result does not depend on it.
        selection: what stays of task vectors, where ``tensors`` are pieces of what `middle` was given.

    Raises:
        IsomergeError: a density or gamma outside of [0, 1].
    """
    parts = selection or middle(tensors, base, density=density, gamma=gamma, rescale=rescale)
    return add_task_vectors(weight, base.dtype, normalize=normalize, lambda_=lambda_, parts=parts)


@entries_method(select=middle)
@limited(density=SHARE, gamma=SHARE, consensus_method=CONSENSUS, bound=task_vectors)
def breadcrumbs_ties(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    gamma: Sequence[float] = per_model(0.01),
    normalize: bool = False,
    rescale: bool = False,
    lambda_: float = 1.0,
    consensus_method: str = "sum",
    int8_mask: bool = False,
    selection: Sequence[Part | None] | None = None,
) -> Entries:
    """Breadcrumbs' task vectors, with TIES' election of signs.

    Args:
        tensors, base, weight, density, gamma, rescale, lambda_, int8_mask, selection: as in `breadcrumbs`.
        normalize: divide by the weights that agree.
        consensus_method: as in `isomerge.fusion.ties.ties`.

    Raises:
        IsomergeError: a density or gamma outside of [0, 1].
    """
    parts = selection or middle(tensors, base, density=density, gamma=gamma, rescale=rescale)
    return add_task_vectors(
        weight, base.dtype, normalize=normalize, lambda_=lambda_, consensus=consensus_method, parts=parts
    )
