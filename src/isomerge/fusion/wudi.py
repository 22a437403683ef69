"""WUDI (Cheng et al. 2025, Whoever Started the Interference Should End It: Guiding Data-Free Model Merging via Task
Vectors)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import descended
from isomerge.fusion.descent import adam
from isomerge.fusion.matrices import merged_matrices, sum_of
from isomerge.fusion.method_options import NOT_NEGATIVE, Range, limited
from isomerge.fusion.registry import merge_method, per_model


@merge_method
@limited(weight=NOT_NEGATIVE, iterations=Range(least=0), learning_rate=NOT_NEGATIVE, bound=descended)
def wudi(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    iterations: int = 300,
    learning_rate: float = 1e-5,
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """The sum of task vectors, moved to where it disturbs none of them: a task vector's rows span what its layer
    reads.

    Adam from ``tau = sum_m delta_m`` on ``sum_m |(tau - delta_m) delta_m^T|^2 / |delta_m|^2`` (equation 8), every
    ``delta_m`` with its weight; ``base + lambda tau``. The gradient is a formula, of one product of matrices. What
    is no matrix is averaged. Task vectors that are nothing count for nothing.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model, by which its task vector is multiplied.
        iterations: steps of Adam; at 0 `task_arithmetic`.
        learning_rate: of Adam, in the units of weights: an entry moves at most a few times ``iterations`` times as
            far.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.
    """

    def mix(deltas: list[Tensor]) -> Tensor:
        mixed = sum_of(deltas)
        some = [delta for delta in deltas if float(delta.square().sum()) > 0]
        if not some or not iterations:
            return mixed
        grams = [delta.mT @ delta / delta.square().sum() for delta in some]
        target = sum_of([delta @ gram for delta, gram in zip(some, grams, strict=True)])
        pooled = sum_of(grams)
        return adam(
            mixed,
            lambda tau: torch.addmm(target, tau, pooled, beta=-2, alpha=2),
            iterations=int(iterations),
            learning_rate=learning_rate,
        )

    return merged_matrices(tensors, base, weight, mix, lambda_=lambda_, stacked=stacked)
