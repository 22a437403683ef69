"""Task vectors (Ilharco et al. 2023): sums of what the models have learned beyond their base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 1 << 16
"""Entries that are worked on at a time: temporaries stay in the cache, and below the size that is mapped afresh each time
(`isomerge.engine.memory`), which costs more than the arithmetic."""
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
        deltas: one task vector per model, sparse or not.
        weight: one weight per model.
        normalize: divide. Where the weights sum to zero, nothing is divided.
        lambda_: scales what is added.
        consensus: see `elect_signs`; None: no election.
    """
    import torch

    # entry by entry, so in pieces
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    pieces = (t.reshape(-1).split(PIECE) for t in (out, base, *deltas))
    for place, origin, *parts in zip(*pieces, strict=True):
        mixed = _mixed(parts, weight, normalize, consensus)
        torch.add(origin, mixed.mul_(lambda_), out=place)
    return out


def _mixed(deltas: Sequence[Tensor], weight: Sequence[float], normalize: bool, consensus: str | None) -> Tensor:
    """What `add_task_vectors` adds up, before ``lambda``."""
    import torch

    deltas = [delta * share for delta, share in zip(deltas, weight, strict=True)]
    mixed = torch.zeros_like(deltas[0])
    if consensus is None:
        for delta in deltas:
            mixed += delta
        total = sum(weight)
        if normalize and abs(total) >= NO_WEIGHT:
            mixed /= total
    else:
        elected = elect_signs(deltas, consensus)
        counted = torch.zeros_like(mixed)
        for delta, share in zip(deltas, weight, strict=True):
            agrees = (delta.sign() == elected).to(mixed.dtype)
            mixed += delta * agrees
            counted += agrees * share
        if normalize:
            mixed /= torch.where(counted == 0, 1.0, counted)
    return mixed
