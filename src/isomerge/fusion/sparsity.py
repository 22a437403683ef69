"""Sparse task vectors: which entries are kept.

Selection is by the k-th smallest value (quickselect), never by sorting. Among equal values at a threshold the
earlier entry ranks lower in ascending and higher in descending order, as with a stable sort.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from isomerge.errors import IsomergeError
from isomerge.pieces import PIECE


def lowest(values: Tensor, count: int) -> Tensor:
    """The mask of the ``count`` lowest entries of a tensor of any shape; of equal ones the earlier are lower."""

    if count >= values.numel():
        return torch.ones_like(values, dtype=torch.bool)
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    flat = values.reshape(-1)
    threshold = kth_smallest(flat.clone(), count)
    mask = flat <= threshold
    over = int(torch.count_nonzero(mask)) - count  # the last entries at the threshold, which are left out
    for place, piece in zip(reversed(mask.split(PIECE)), reversed(flat.split(PIECE)), strict=True):
        if over == 0:
            break
        ties = (piece == threshold).nonzero().flatten()[-over:]
        place[ties] = False
        over -= len(ties)
    return mask.reshape(values.shape)


def kth_smallest(flat: Tensor, k: int) -> float:
    """The ``k``-th smallest entry (from one) of a vector, whose entries are put in another order: the ``k`` lowest
    first."""
    if flat.device.type != "cpu":
        flat.copy_(flat.sort().values)
    else:
        flat.numpy().partition(k - 1)  # with vector instructions: 13 times faster than torch's kthvalue
    return float(flat[k - 1])


def check_share(name: str, value: float) -> None:
    """Refuse a share outside of [0, 1].

    Raises:
        IsomergeError: naming the parameter.
    """
    if not 0 <= value <= 1:
        raise IsomergeError(
            f"`{name}` is {value}, but it is a share of the entries of a tensor: give a number from 0 to 1"
        )


def check_window(density: float, epsilon: float) -> None:
    """Refuse probabilities ``density +- epsilon`` that leave (0, 1).

    Raises:
        IsomergeError: naming the parameters.
    """
    if density - epsilon <= 0 or density + epsilon >= 1:
        raise IsomergeError(
            f"`epsilon` is {epsilon} with a density of {density}, but density - epsilon and density + epsilon must "
            "lie between 0 and 1: choose a smaller epsilon"
        )


def random_entries(like: Tensor, density: float, rng: Generator) -> Tensor:
    """DARE: every entry is kept with probability ``density``, independently."""
    mask = torch.empty(like.numel(), dtype=torch.bool)
    for place in mask.split(PIECE):
        torch.lt(torch.rand(len(place), generator=rng), density, out=place)
    return mask.reshape(like.shape)


def ranked_entries(delta: Tensor, density: float, epsilon: float, rng: Generator) -> Tensor:
    """DELLA: entries are kept with probabilities that rise evenly with their rank by magnitude within their row.

    From ``density - epsilon`` for a row's smallest to ``density + epsilon`` for its largest; a row of one entry has
    ``density``. Vectors are one row, and rows of tensors of three and more axes run along the second (mergekit's).
    Exact ranks need one sort.

    Raises:
        IsomergeError: ``density +- epsilon`` leaves (0, 1).
    """
    from isomerge.loops import compiled, keep_ranked

    check_window(density, epsilon)
    rows = delta.abs() if delta.ndim > 1 else delta.abs().reshape(1, -1)
    length = rows.shape[1]
    steps = torch.linspace(density - epsilon, density + epsilon, length) if length > 1 else torch.tensor([density])
    if not rows.numel():
        return torch.zeros(delta.shape, dtype=torch.bool)
    draws = torch.rand(rows.shape, generator=rng).movedim(1, -1)
    along = rows.movedim(1, -1).reshape(-1, length)
    if rows.dtype == torch.float32:  # bits of sizes are in their order, and an entry's place comes after
        order = (along.view(torch.int32).long() << 32) | torch.arange(length)
        order.numpy().sort(axis=1)
    else:
        order = along.argsort(dim=1, stable=True)
    mask = torch.empty(along.shape, dtype=torch.bool)
    limits = steps.to(rows.dtype).numpy()
    compiled(keep_ranked)(draws.reshape(-1, length).numpy(), order.numpy(), limits, mask.numpy())
    return mask.reshape(draws.shape).movedim(-1, 1).reshape(delta.shape)
