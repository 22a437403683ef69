"""TIES' trimming: the threshold of a task vector, exact, without the task vector being whole in memory.

Magnitudes in float32 are in the order of their bits. One pass counts them by their leading bits, which tells the
bin of the rank that is asked for; a second one counts those of that bin by the bits below. In float64, of which
such counts are too many, all magnitudes are searched by quickselect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isomerge.fusion.sparsity import NEGLIGIBLE, check_share, kth_smallest
from isomerge.passes import Pass
from isomerge.pieces import wide_dtype


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


def rank_of(sizes: Sizes, k: int) -> Rank:
    """The ``k``-th smallest (from one) of all magnitudes."""
    if sizes.wide != torch.float32:
        whole = torch.cat(list(sizes))
        value = kth_smallest(whole, k)
        return Rank(value, int((whole < value).sum()), int((whole == value).sum()))
    from isomerge.loops import LOW, compiled, count_high, count_low  # numba: a quarter of a second

    bins, numbers = np.zeros(1 << 16, np.int64), np.zeros(1 << LOW, np.int64)
    for x, y in sizes.pairs():
        compiled(count_high)(x.numpy(), y.numpy(), bins)
    high, less = _place(bins, k)
    for x, y in sizes.pairs():
        compiled(count_low)(x.numpy(), y.numpy(), np.uint32(high), numbers)
    low, more = _place(numbers, k - less)
    value = np.array([high << LOW | low], np.uint32).view(np.float32)
    return Rank(float(value[0]), less + more, int(numbers[low]))


def _place(counts: Any, k: int) -> tuple[int, int]:
    """The bin of the ``k``-th smallest, and how many are in the bins before."""
    ends = counts.cumsum()
    place = int(np.searchsorted(ends, k))
    return place, int(ends[place] - counts[place])


class Trim:
    """TIES: only the ``max(1, floor(density N))`` entries of largest magnitude stay (none at density 0).

    Of equal ones the earlier stay. A task vector is trimmed in pieces, in order.

    Args:
        sizes: the magnitudes of the task vector.
        density: the share that stays.
        rescale: scale what stays to the sum of magnitudes that there was.
    """

    def __init__(self, sizes: Sizes, density: float, *, rescale: bool = False) -> None:
        left_out = len(sizes) - max(1, int(density * len(sizes)))
        rank = rank_of(sizes, left_out + 1)
        self.threshold = rank.value
        over = rank.less < left_out  # some of this size go
        self.ties = rank.less + rank.equal - left_out if over else 0
        """How many entries of the size of the threshold are still to be kept."""
        at = torch.tensor(self.threshold, dtype=sizes.wide)
        self.level = self.threshold if over else float(torch.nextafter(at, -torch.ones_like(at)))
        """Entries larger than this stay."""
        self.factor = 1.0 if density else 0.0
        if rescale and density:
            self.factor = self._rescaling(sizes)

    def _rescaling(self, sizes: Sizes) -> float:
        """By what the entries that stay are multiplied to have the sum of magnitudes of all."""
        before, after = 0.0, self.ties * self.threshold
        for piece in sizes:
            before += float(piece.sum(dtype=torch.float64))
            after += float(torch.nn.functional.hardshrink(piece, self.level).sum(dtype=torch.float64))
        return before / after if before >= NEGLIGIBLE and after >= NEGLIGIBLE else 1.0

    def __call__(self, part: Tensor, base: Tensor) -> Tensor:
        """The next piece of the task vector, trimmed, from those of the model and of the base: vectors."""
        from isomerge.loops import compiled, trim

        delta = torch.empty_like(part)
        number = delta.numpy().dtype.type
        self.ties -= compiled(trim)(
            part.numpy(), base.numpy(), number(self.level), number(self.threshold), self.ties, delta.numpy()
        )
        return delta if self.factor == 1 else delta.mul_(self.factor)


def trims_of(
    tensors: Sequence[Tensor], base: Tensor, *, density: Sequence[float], rescale: bool, **_: Any
) -> list[Trim | None]:
    """How every model's task vector is trimmed; None: it is kept as it is.

    Args:
        tensors, base: as they are stored, of one shape.
        density, rescale: as of `isomerge.fusion.ties.ties`.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    for share in density:
        check_share("density", share)
    wide = wide_dtype([base, *tensors])
    return [
        None if share == 1 else Trim(Sizes(t, base, wide), share, rescale=rescale)
        for t, share in zip(tensors, density, strict=True)
    ]
