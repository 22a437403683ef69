"""Task vectors (Ilharco et al. 2023): sums of what the models have learned beyond their base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor

NO_WEIGHT = 1e-8
"""Sum of weights that nothing is divided by (mergekit's)."""


def elect_signs(deltas: Sequence[Tensor], consensus: str) -> Tensor:
    """TIES' elected sign of every entry, +1 or -1.

    Args:
        deltas: weighted task vectors.
        consensus: ``sum``: the sign of their sum, as in the paper. ``count``: the sign that more of them have. A tie, and
            what nobody changes, is positive.

    Raises:
        IsomergeError: another word for ``consensus``.
    """
    import torch

    if consensus not in ("sum", "count"):
        raise IsomergeError(f"`consensus_method` is {consensus}, but it is one of: sum, count")
    votes = torch.zeros_like(deltas[0])
    for delta in deltas:
        votes += delta if consensus == "sum" else delta.sign()
    return (votes >= 0).to(votes.dtype).mul_(2).sub_(1)


def add_task_vectors(
    base: Tensor,
    deltas: Sequence[Tensor],
    weight: Sequence[float],
    *,
    normalize: bool,
    lambda_: float,
    consensus: str | None = None,
) -> Tensor:
    """``base + lambda sum_m w_m delta_m``, divided by the sum of weights when ``normalize``.

    With ``consensus`` an entry of a model counts, in both sums, only where its weighted task vector has the elected sign.

    Args:
        base: the base's tensor.
        deltas: one task vector per model, sparse or not; overwritten.
        weight: one weight per model.
        normalize: divide. Where the weights sum to zero, nothing is divided.
        lambda_: scales what is added.
        consensus: see `elect_signs`; None: no election.
    """
    import torch

    for delta, share in zip(deltas, weight, strict=True):
        delta *= share
    mixed = torch.zeros_like(base)
    if consensus is None:
        for delta in deltas:
            mixed += delta
        total = sum(weight)
        if normalize and abs(total) >= NO_WEIGHT:
            mixed /= total
    else:
        elected = elect_signs(deltas, consensus)
        counted = torch.zeros_like(base)
        for delta, share in zip(deltas, weight, strict=True):
            agrees = (delta.sign() == elected).to(base.dtype)
            mixed += delta * agrees
            counted += agrees * share
        if normalize:
            mixed /= torch.where(counted == 0, 1.0, counted)
    return mixed.mul_(lambda_).add_(base)
