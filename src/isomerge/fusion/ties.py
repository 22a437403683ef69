"""TIES (Yadav et al. 2023, TIES-Merging: Resolving Interference When Merging Models)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import CONSENSUS, SHARE, limited
from isomerge.fusion.registry import per_model, widening_method
from isomerge.fusion.sparsity import check_share
from isomerge.fusion.task_vectors import mixed_task_vector
from isomerge.fusion.trimming import Sizes, Trim
from isomerge.pieces import pieces, wide_dtype


@widening_method
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
    out: Tensor | None = None,
) -> Tensor:
    """Trim, elect, merge: task vectors keep their largest entries, and of these only those of the elected sign.

    ``base + lambda (sum_m w_m d_m [sign(w_m d_m) = s]) / (sum_m w_m [sign(w_m d_m) = s])`` with the trimmed task
    vectors ``d_m`` and ``s = sign(sum_m w_m d_m)``, entry by entry.

    Args:
        tensors: one tensor per model, of one shape, in any floating dtype, aligned.
        base: the base's tensor.
        weight: one weight per model.
        density: the share of entries that each task vector keeps (at least one entry; none at 0).
        normalize: divide by the weights that agree.
        rescale: scale trimmed task vectors to the sum of magnitudes that they had.
        lambda_: scales what is added.
        consensus_method: ``sum`` (the paper's) or ``count``, a vote of one sign per model.
        int8_mask: accepted for mergekit's recipes; masks are booleans here, and the result does not depend on it.
        out: where the result goes, in any floating dtype.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """

    for share in density:
        check_share("density", share)
    wide = wide_dtype([base, *tensors])
    out = torch.empty(base.shape, dtype=wide, device=base.device) if out is None else out
    trims = [
        None if share == 1 else Trim(Sizes(t, base, wide), share, rescale=rescale)
        for t, share in zip(tensors, density, strict=True)
    ]
    for (origin, *parts), place in pieces([base, *tensors], out, wide):
        deltas = [part - origin for part in parts]
        deltas = [delta if trim is None else trim(delta) for delta, trim in zip(deltas, trims, strict=True)]
        mixed = mixed_task_vector(deltas, weight, normalize=normalize, consensus=consensus_method)
        place.copy_(mixed.mul_(lambda_).add_(origin) if lambda_ != 1 else mixed.add_(origin))
    return out
