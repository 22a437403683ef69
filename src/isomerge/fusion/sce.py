"""SCE (Wan et al. 2024, FuseChat: Select, Calculate, Erase)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import changes
from isomerge.fusion.method_options import SHARE, limited
from isomerge.fusion.registry import merge_method
from isomerge.fusion.sparsity import check_share, lowest
from isomerge.fusion.task_vectors import elect_signs

NEGLIGIBLE = 1e-6
"""Sum of the models' mean squares below which they weigh alike, and the smallest sum of weights that is divided
by."""


@merge_method
@limited(select_topk=SHARE, bound=changes)
def sce(tensors: Sequence[Tensor], base: Tensor, *, select_topk: float = 1.0, int8_mask: bool = False) -> Tensor:
    """Select entries on which the models differ, calculate the models' weights, erase minority signs.

    Of the task vectors only the entries of largest variance over the models stay: ``floor(select_topk N)`` of the N
    whose variance is not zero. A model weighs the mean square of what stays of its task vector. Of each entry the
    models with the sign of the sum are averaged by these weights. (The election, as in mergekit, is not weighted.
    Where mean squares sum to less than 1e-6, as between a base and a light fine-tune, its models weigh alike.)

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        select_topk: the share of entries that stay; 1 keeps all, also those on which all models agree.
        int8_mask: accepted for mergekit's recipes; the result does not depend on it.

    Raises:
        IsomergeError: a share outside of [0, 1].
    """

    check_share("select_topk", select_topk)
    deltas = [t - base for t in tensors]
    if select_topk < 1:
        spread = torch.stack(deltas).var(0, unbiased=False)
        count = int(int(spread.count_nonzero()) * select_topk)
        mask = lowest(spread.neg_(), count)
        deltas = [delta * mask for delta in deltas]
    squares = [float(delta.square().mean(dtype=torch.float64)) for delta in deltas]
    total = sum(squares)
    shares = [1 / len(deltas) if total < NEGLIGIBLE else square / total for square in squares]
    elected = elect_signs(deltas, "sum")
    mixed, counted = torch.zeros_like(base), torch.zeros_like(base)
    for delta, share in zip(deltas, shares, strict=True):
        agrees = (delta.sign() == elected).to(base.dtype) * share
        mixed += delta * agrees
        counted += agrees
    return mixed.div_(counted.clamp_min(NEGLIGIBLE)).add_(base)
