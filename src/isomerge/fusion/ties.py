"""TIES (Yadav et al. 2023, TIES-Merging: Resolving Interference When Merging Models)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.fusion.registry import merge_method, per_model
from isomerge.fusion.sparsity import check_share, largest_entries, sparse
from isomerge.fusion.task_vectors import add_task_vectors

if TYPE_CHECKING:
    from torch import Tensor


@merge_method
def ties(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    normalize: bool = True,
    rescale: bool = False,
    lambda_: float = 1.0,
    consensus_method: str = "sum",
    int8_mask: bool = False,
) -> Tensor:
    """Trim, elect, merge: task vectors keep their largest entries, and of these only those of the elected sign.

    ``base + lambda (sum_m w_m d_m [sign(w_m d_m) = s]) / (sum_m w_m [sign(w_m d_m) = s])`` with the trimmed task vectors
    ``d_m`` and ``s = sign(sum_m w_m d_m)``, entry by entry.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        density: the share of entries that each task vector keeps (at least one entry; none at 0).
        normalize: divide by the weights that agree.
        rescale: scale trimmed task vectors to the sum of magnitudes that they had.
        lambda_: scales what is added.
        consensus_method: ``sum`` (the paper's) or ``count``, a vote of one sign per model.
        int8_mask: accepted for mergekit's recipes; masks are booleans here, and the result does not depend on it.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    deltas = []
    for tensor, share in zip(tensors, density, strict=True):
        check_share("density", share)
        delta = tensor - base
        deltas.append(delta if share == 1 else sparse(delta, largest_entries(delta, share), rescale))
        del delta  # the next one needs its room
    return add_task_vectors(base, deltas, weight, normalize=normalize, lambda_=lambda_, consensus=consensus_method)
