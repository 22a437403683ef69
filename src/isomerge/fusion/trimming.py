"""Sparse task vectors: which entries are kept, chosen before and cut out in pieces: none is whole in memory.

Selection is by the k-th smallest value (quickselect), never by sorting. Among equal values at a threshold the
earlier entry ranks lower in ascending and higher in descending order, as with a stable sort. Magnitudes in float32
are in the order of their bits: one pass counts them by their leading bits, which tells the bin of the rank that is
asked for, a second one those of that bin by the bits below. In float64, of which such counts are too many, all
magnitudes are searched by quickselect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from isomerge.errors import IsomergeError
from isomerge.passes import Part, Pass
from isomerge.pieces import PIECE, wide_dtype


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


NEGLIGIBLE = 1e-7
"""Sum of magnitudes below which nothing is rescaled (mergekit's)."""


class Sizes:
    """The magnitudes of a task vector's entries, ``|tensor - base|``.

    Args:
        tensor, base: of one shape, in any floating dtype.
        wide: the dtype that is computed in.
    """

    def __init__(self, tensor: Tensor, base: Tensor, wide: torch.dtype) -> None:
        self.tensors, self.wide = (tensor, base), wide

    def __len__(self) -> int:
        return self.tensors[0].numel()

    def __iter__(self) -> Iterator[Tensor]:
        """Piece by piece, in order; each computed anew."""
        for part, origin in self.pairs():
            yield torch.sub(part, origin).abs_()

    def pairs(self) -> Iterator[list[Tensor]]:
        """The tensor and the base, piece by piece; in memory that is lent until the next."""
        return Pass(self.tensors, self.wide).pieces(measure=False)


@dataclass(frozen=True)
class Rank:
    """The entry of a rank: its ``value``, how many entries are ``less``, and how many ``equal`` to it."""

    value: float
    less: int
    equal: int


def ranks_of(sizes: Sizes, ks: Sequence[int]) -> list[Rank]:
    """The ``k``-th smallest (from one) of all magnitudes, for every k."""
    if sizes.wide != torch.float32:
        whole = torch.cat(list(sizes))
        values = [kth_smallest(whole, k) for k in ks]
        return [Rank(v, int((whole < v).sum()), int((whole == v).sum())) for v in values]
    from isomerge.loops import LOW, compiled, count_high, count_low  # numba: a quarter of a second

    bins, numbers = np.zeros(1 << 16, np.int64), np.zeros((len(ks), 1 << LOW), np.int64)
    for x, y in sizes.pairs():
        compiled(count_high)(x.numpy(), y.numpy(), bins)
    places = [_place(bins, k) for k in ks]
    for x, y in sizes.pairs():
        for (high, _), counts in zip(places, numbers, strict=True):
            compiled(count_low)(x.numpy(), y.numpy(), np.uint32(high), counts)
    ranks = []
    for k, (high, less), counts in zip(ks, places, numbers, strict=True):
        low, more = _place(counts, k - less)
        value = np.array([high << LOW | low], np.uint32).view(np.float32)
        ranks.append(Rank(float(value[0]), less + more, int(counts[low])))
    return ranks


def _place(counts: Any, k: int) -> tuple[int, int]:
    """The bin of the ``k``-th smallest, and how many are in the bins before."""
    ends = counts.cumsum()
    place = int(np.searchsorted(ends, k))
    return place, int(ends[place] - counts[place])


class Trim(Part):
    """The entries whose places are in a range, by magnitude from the smallest on.

    Args:
        sizes: the magnitudes of the task vector.
        start, end: the range of places.
        rescale: scale what stays to the sum of magnitudes that there was.
        earlier: of the magnitude where the range starts the earlier entries stay; else the later.
    """

    def __init__(self, sizes: Sizes, start: int, end: int, *, rescale: bool = False, earlier: bool = False) -> None:
        super().__init__()
        n, self.factor = len(sizes), 1.0 if start < end else 0.0
        if start == end:
            return
        ks = [*([start + 1] if start else []), *([end] if end < n else [])]
        ranks = ranks_of(sizes, ks) if ks else []
        if start:
            rank = ranks[0]
            self.low, out = rank.value, start - rank.less
            self.stay[0] = (0, rank.equal - out) if earlier else (out, rank.equal)
        if end < n:
            rank = ranks[-1]
            self.high = rank.value
            if rank.value == self.low:  # all that stays is of one magnitude
                self.stay[0, 1], self.stay[1] = end - rank.less, (0, n)
            else:
                self.stay[1, 1] = end - rank.less
        if rescale:
            self.factor = factor_of(self, sizes)


class Masked(Part):
    """The entries of a mask.

    Args:
        mask: which entries stay, booleans of the task vector's shape.
        rescaled: the magnitudes of the task vector, where what stays is scaled to their sum.
    """

    def __init__(self, mask: Tensor, rescaled: Sizes | None = None) -> None:
        super().__init__()
        self.mask = mask.reshape(-1).numpy()
        if rescaled is not None:
            self.factor = factor_of(self, rescaled)


def factor_of(part: Part, sizes: Sizes) -> float:
    """By what a part of a task vector is multiplied to have the sum of magnitudes of all."""
    from isomerge.loops import compiled, masses

    sums = np.zeros(2)
    for x, y in sizes.pairs():
        compiled(masses)(x.numpy(), y.numpy(), part(x, y).numpy(), sums)
    part.seen[:] = 0
    before, after = sums.tolist()
    return before / after if before >= NEGLIGIBLE and after >= NEGLIGIBLE else 1.0


def parts_of(
    tensors: Sequence[Tensor], base: Tensor, density: Sequence[float], part: Callable[..., Part], *more: Any
) -> list[Part | None]:
    """What stays of every task vector; None: all, at density 1. ``part`` is given its magnitudes, its density, and
    its entry of ``more``.
    """
    wide = wide_dtype([base, *tensors])
    return [
        None if share == 1 else part(Sizes(t, base, wide), share, *own)
        for t, share, *own in zip(tensors, density, *more, strict=True)
    ]
