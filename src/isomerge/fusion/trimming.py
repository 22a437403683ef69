"""TIES' trimming: the threshold of a task vector, found exactly without the task vector being whole in memory.

The rank that is asked for lies, almost always, between two values that a sample gives. One pass counts what is
below, at and between them; what lies between, a few entries in a hundred, is searched by quickselect. Where the
sample misleads, the whole task vector is searched: the result never depends on the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isomerge.fusion.sparsity import NEGLIGIBLE, kth_smallest
from isomerge.pieces import PIECE, scratch

SAMPLE = 1 << 16
"""Entries of a sample."""
WHOLE = 1 << 24
"""Vectors of no more entries are searched whole, in 67 megabytes: as fast on one core, and one long step, during
which other threads have the interpreter's lock."""
SIGMAS = 6.0
"""Standard deviations of a random sample's rank between which the searched one is looked for: they hold 1 - 2e-9 of
all random samples. Ours is drawn at even distances, which an adversary may mislead: that costs time."""


ROOM = 0.05
"""The share of a vector for which there is room between the two values; a random sample leaves no more than 0.024
there."""


class Sizes:
    """The magnitudes of a task vector's entries, ``|tensor - base|``.

    Args:
        tensor, base: of one shape, in any floating dtype.
        wide: the dtype that is computed in.
    """

    def __init__(self, tensor: Tensor, base: Tensor, wide: torch.dtype) -> None:
        self._wide = wide
        self._flat = tensor.reshape(-1), base.reshape(-1)

    def __len__(self) -> int:
        return self._flat[0].numel()

    def __iter__(self) -> Iterator[Tensor]:
        """Piece by piece, in order; each computed anew."""
        for part, origin in zip(*(x.split(PIECE) for x in self._flat), strict=True):
            yield self._of(part, origin)

    def sample(self, count: int) -> Tensor:
        """At least ``count`` entries (all, of fewer), at even distances."""
        step = max(1, len(self) // count)
        return self._of(*(x[::step] for x in self._flat))

    @contextmanager
    def whole(self) -> Iterator[Tensor]:
        """All of them, in memory that is lent."""
        with scratch(self._flat[0], self._wide) as room:
            for part, origin, place in zip(*(x.split(PIECE) for x in (*self._flat, room)), strict=True):
                self._of(part, origin, place)
            yield room

    def _of(self, part: Tensor, origin: Tensor, out: Tensor | None = None) -> Tensor:

        return torch.sub(part.to(self._wide), origin.to(self._wide), out=out).abs_()


@dataclass(frozen=True)
class Rank:
    """The entry of a rank: its ``value``, how many entries are ``less``, and how many ``equal`` to it."""

    value: float
    less: int
    equal: int


def rank_of(sizes: Sizes, k: int) -> Rank:
    """The ``k``-th smallest (from one) of all magnitudes."""
    if len(sizes) > WHOLE and (rank := _between(sizes, k, *_bracket(sizes, k))):
        return rank
    with sizes.whole() as room:
        return _searched(room, k)


def _bracket(sizes: Sizes, k: int) -> tuple[float, float]:
    """Two values between which the ``k``-th smallest lies, most probably."""
    sample = sizes.sample(SAMPLE).sort().values
    count, share = len(sample), k / len(sizes)
    spread = SIGMAS * (count * share * (1 - share)) ** 0.5 + 1
    first, last = int(share * count - spread) - 1, int(share * count + spread) + 1
    return (float(sample[first]) if first >= 0 else -inf, float(sample[last]) if last < count else inf)


def _between(sizes: Sizes, k: int, low: float, high: float) -> Rank | None:
    """The ``k``-th smallest where it is from ``low`` to ``high``; None where it is not, or where too much lies
    between."""

    below = at_low = at_high = count = 0
    # one room for all: small arrays that are kept among large ones that are not would leave memory full of holes
    inside = sizes.sample(1).new_empty(int(ROOM * len(sizes)) + PIECE)
    for piece in sizes:
        entries = _entries(piece)
        least, most = entries.dtype.type(low), entries.dtype.type(high)
        below += int(np.count_nonzero(entries < least))
        at_low += int(np.count_nonzero(entries == least))
        at_high += int(np.count_nonzero(entries == most))
        chosen = entries[(entries > least) & (entries < most)]
        if count + len(chosen) > len(inside):
            return None
        _entries(inside)[count : count + len(chosen)] = chosen
        count += len(chosen)
    if low == high:
        at_high = 0
    if below < k <= below + at_low:
        return Rank(low, below, at_low)
    passed = below + at_low
    if passed < k <= passed + count:
        rank = _searched(inside[:count], k - passed)
        return Rank(rank.value, passed + rank.less, rank.equal)
    passed += count
    return Rank(high, passed, at_high) if passed < k <= passed + at_high else None


def _searched(sizes: Tensor, k: int) -> Rank:
    """By quickselect; the entries are put in another order."""

    value = kth_smallest(sizes, k)
    entries = _entries(sizes)
    at = entries.dtype.type(value)
    return Rank(value, int(np.count_nonzero(entries < at)), int(np.count_nonzero(entries == at)))


def _entries(sizes: Tensor) -> Any:
    """As numpy's array, whose comparisons take a tenth of torch's time."""
    return sizes.cpu().numpy()


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
        at = next(iter(sizes)).new_tensor(self.threshold)
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

    def __call__(self, piece: Tensor) -> Tensor:
        """The next piece of the task vector, trimmed."""

        kept = torch.nn.functional.hardshrink(piece, self.level)  # a sixth of the time of signs and products
        if self.ties:
            entries = _entries(piece.abs())
            ties = torch.from_numpy((entries == entries.dtype.type(self.threshold)).nonzero()[0][: self.ties])
            kept[ties.to(kept.device)] = piece[ties.to(kept.device)]
            self.ties -= len(ties)
        return kept if self.factor == 1 else kept.mul_(self.factor)
