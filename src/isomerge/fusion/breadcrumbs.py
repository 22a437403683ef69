"""Model breadcrumbs (Davari and Belilovsky 2024): task vectors without their smallest and their largest entries."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import CONSENSUS, SHARE, limited
from isomerge.fusion.registry import merge_method, per_model
from isomerge.fusion.sparsity import check_share, middle_entries, sparse
from isomerge.fusion.task_vectors import add_task_vectors


@merge_method
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
) -> Tensor:
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

    Raises:
        IsomergeError: a density or gamma outside of [0, 1].
    """
    deltas = trodden(tensors, base, density, gamma, rescale)
    return add_task_vectors(base, deltas, weight, normalize=normalize, lambda_=lambda_)


@merge_method
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
) -> Tensor:
    """Breadcrumbs' task vectors, with TIES' election of signs.

    Args:
        tensors, base, weight, density, gamma, rescale, lambda_, int8_mask: as in `breadcrumbs`.
        normalize: divide by the weights that agree.
        consensus_method: as in `isomerge.fusion.ties.ties`.

    Raises:
        IsomergeError: a density or gamma outside of [0, 1].
    """
    deltas = trodden(tensors, base, density, gamma, rescale)
    return add_task_vectors(base, deltas, weight, normalize=normalize, lambda_=lambda_, consensus=consensus_method)


def trodden(
    tensors: Sequence[Tensor], base: Tensor, density: Sequence[float], gamma: Sequence[float], rescale: bool
) -> list[Tensor]:
    """The task vectors with their middle entries."""
    deltas = []
    for tensor, share, outliers in zip(tensors, density, gamma, strict=True):
        check_share("density", share)
        check_share("gamma", outliers)
        delta = tensor - base
        deltas.append(delta if share == 1 else sparse(delta, middle_entries(delta, share, outliers), rescale))
    return deltas
