"""Task vectors (Ilharco et al. 2023): sums of what the models have learned beyond their base."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.pieces import pieces

NO_WEIGHT = 1e-8
"""Sum of weights that nothing is divided by (mergekit's)."""


def elect_signs(deltas: Sequence[Tensor], consensus: str) -> Tensor:
    """TIES' elected sign of every entry, +1 or -1.

    Args:
        deltas: weighted task vectors.
        consensus: ``sum``: the sign of their sum, as in the paper. ``count``: the sign that more of them have. A
            tie, and what nobody changes, is positive.

    Raises:
        IsomergeError: another word for ``consensus``.
    """

    check_consensus(consensus)
    votes = reduce(torch.add, deltas if consensus == "sum" else [delta.sign() for delta in deltas])
    return torch.copysign(votes.new_ones(()), votes)  # x - x is +0


def check_consensus(consensus: str) -> None:
    """Raises IsomergeError where this is no way to elect signs."""
    if consensus not in ("sum", "count"):
        raise IsomergeError(f"`consensus_method` is {consensus}, but it is one of: sum, count")


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

    With ``consensus`` an entry of a model counts, in both sums, only where its weighted task vector has the elected
    sign.

    Args:
        base: the base's tensor.
        deltas: one task vector per model, sparse or not.
        weight: one weight per model.
        normalize: divide. Where the weights sum to zero, nothing is divided.
        lambda_: scales what is added.
        consensus: see `elect_signs`; None: no election.
    """

    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    for (origin, *parts), place in pieces([base, *deltas], out):  # entry by entry
        mixed = mixed_task_vector(parts, weight, normalize=normalize, consensus=consensus)
        torch.add(origin, mixed, alpha=lambda_, out=place)
    return out


def mixed_task_vector(
    deltas: Sequence[Tensor], weight: Sequence[float], *, normalize: bool, consensus: str | None = None
) -> Tensor:
    """What `add_task_vectors` adds up, before ``lambda``."""

    if consensus is None:
        deltas = [delta if share == 1 else delta * share for delta, share in zip(deltas, weight, strict=True)]
        mixed = deltas[0].clone()
        for delta in deltas[1:]:
            mixed += delta
        total = sum(weight)
        return mixed.div_(total) if normalize and abs(total) >= NO_WEIGHT else mixed
    from isomerge.loops import compiled, elect

    check_consensus(consensus)
    parts = tuple(delta.reshape(-1).contiguous().numpy() for delta in deltas)
    out = np.empty_like(parts[0])
    shares = torch.tensor(weight, dtype=torch.float64).to(deltas[0].dtype).numpy()
    if not np.isfinite(shares).all():
        raise RuntimeError("a weight cannot be converted without overflow")  # as torch says it
    least = min(weight) if normalize else 0.0
    least = max(least, float(np.finfo(out.dtype).tiny)) if least > 0 else 0.0  # a weight that the dtype has not
    compiled(elect)(parts, shares, consensus == "count", normalize, out.dtype.type(least), out)
    return torch.from_numpy(out).view(deltas[0].shape)
