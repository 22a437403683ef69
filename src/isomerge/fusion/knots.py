"""KnOTS (Stoica et al. 2025, Model merging with SVD to tie the Knots)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import in_directions
from isomerge.fusion.matrices import left_directions, merged_matrices
from isomerge.fusion.method_options import NOT_NEGATIVE, SHARE, limited
from isomerge.fusion.registry import merge_method, per_model
from isomerge.fusion.task_vectors import add_task_vectors
from isomerge.fusion.trimming import lowest


@merge_method
@limited(weight=NOT_NEGATIVE, density=SHARE, bound=in_directions)
def knots(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    normalize: bool = True,
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """TIES in the space that all task vectors write into: ``[delta_1 ... delta_n] = U S [V_1 ... V_n]``, and the
    ``S V_m`` are trimmed and merged.

    ``base + lambda U ties(S V_1, ..., S V_n)`` (equations 3 to 5). ``U`` is shared, so that entries of different
    models that meet have one meaning; for adapters it is small. What is no matrix is merged by TIES as it is. Signs
    are elected by sums alone: in a vote ties would go by the sign of a singular vector, which is arbitrary.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        density: the share of the entries of ``S V_m`` that each model keeps (at least one; none at 0).
        normalize: divide by the weights that agree.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    added = add_task_vectors(weight, base.dtype, normalize=normalize, consensus="sum")

    def ties(parts: list[Tensor]) -> Tensor:
        trimmed = [trim(part, share) for part, share in zip(parts, density, strict=True)]
        return added(trimmed, torch.zeros_like(parts[0]))

    def mix(deltas: list[Tensor]) -> Tensor:
        basis = left_directions(deltas)
        return basis @ ties([basis.mT @ delta for delta in deltas])

    ones = [1.0] * len(tensors)  # the election weighs them itself
    return merged_matrices(tensors, base, ones, mix, lambda_=lambda_, stacked=stacked, rest=ties)


def trim(delta: Tensor, density: float) -> Tensor:
    """A tensor with the share ``density`` of its entries, those of largest magnitude, and zeros elsewhere."""
    if density == 1:
        return delta
    count = max(1, int(density * delta.numel())) if density else 0
    return delta.masked_fill(lowest(delta.abs(), delta.numel() - count), 0)
