"""Parts of task vectors, chosen before and cut out in pieces: no task vector is whole in memory.

Magnitudes in float32 are in the order of their bits. One pass counts them by their leading bits, which tells the
bin of the rank that is asked for; a second one counts those of that bin by the bits below. In float64, of which
such counts are too many, all magnitudes are searched by quickselect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isomerge.fusion.registry import per_model
from isomerge.fusion.sparsity import check_share, kth_smallest
from isomerge.passes import Part, Pass
from isomerge.pieces import wide_dtype

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


def largest(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float] = per_model(1.0),
    rescale: bool = False,
    **_: Any,
) -> list[Part | None]:
    """TIES: of every task vector the ``max(1, floor(density N))`` entries of largest magnitude (none at density 0);
    None: it is kept as it is. Of equal ones the earlier stay.

    Args:
        tensors, base: as they are stored, of one shape.
        density: the share of entries that each task vector keeps.
        rescale: scale what stays to the sum of magnitudes that there was.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    n = base.numel()

    def part(sizes: Sizes, share: float) -> Part:
        kept = min(n, max(1, int(share * n))) if share else 0
        return Trim(sizes, n - kept, n, rescale=rescale, earlier=True)

    return parts_of(tensors, base, density, part)


def parts_of(
    tensors: Sequence[Tensor],
    base: Tensor,
    density: Sequence[float],
    part: Callable[..., Part],
    *more: Any,
) -> list[Part | None]:
    """What stays of every task vector; None: all, at density 1. ``part`` is given its magnitudes, its density, and
    its entry of ``more``.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    wide = wide_dtype([base, *tensors])
    for share in density:
        check_share("density", share)
    return [
        None if share == 1 else part(Sizes(t, base, wide), share, *own)
        for t, share, *own in zip(tensors, density, *more, strict=True)
    ]
