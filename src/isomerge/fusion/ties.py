"""TIES (Yadav et al. 2023, TIES-Merging: Resolving Interference When Merging Models)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import CONSENSUS, SHARE, limited
from isomerge.fusion.registry import elementwise_method, per_model
from isomerge.fusion.task_vectors import mixed_task_vector
from isomerge.fusion.trimming import Trim, trims_of


@elementwise_method(select=trims_of)
@limited(density=SHARE, consensus_method=CONSENSUS, bound=task_vectors)
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
    selection: Sequence[Trim | None] | None = None,
) -> Tensor:
    """Trim, elect, merge: task vectors keep their largest entries, and of these only those of the elected sign.

    ``base + lambda (sum_m w_m d_m [sign(w_m d_m) = s]) / (sum_m w_m [sign(w_m d_m) = s])`` with the trimmed task
    vectors ``d_m`` and ``s = sign(sum_m w_m d_m)``, entry by entry.

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
        selection: how task vectors are trimmed, where ``tensors`` are pieces of what `trims_of` was given.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    trims = trims_of(tensors, base, density=density, rescale=rescale) if selection is None else selection
    origin = base.reshape(-1).contiguous()
    deltas = [
        part.reshape(-1) - origin if trim is None else trim(part.reshape(-1).contiguous(), origin)
        for part, trim in zip(tensors, trims, strict=True)
    ]
    mixed = mixed_task_vector(deltas, weight, normalize=normalize, consensus=consensus_method).view(base.shape)
    return mixed.mul_(lambda_).add_(base) if lambda_ != 1 else mixed.add_(base)
