"""Neurons as points: all weights that one permutation moves, what they are in some directions, and distances of
pairs.

Points are kept as the tensors that they lie in. What is made of them is made in pieces, in the order of memory:
temporaries of the size of a layer are memory that the system clears first, which takes longer than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.pieces import PIECE


@dataclass(frozen=True)
class Points:
    """The n neurons of one model, as tensors [n, features] of any strides: what signs leave alone, and what they
    act on."""

    fixed: tuple[Tensor, ...]
    signed: tuple[Tensor, ...] = field(default=())

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, the fixed ones first."""
        return (*self.fixed, *self.signed)

    def take(self, index: Tensor) -> Points:
        """Some of the points; what lies in columns stays in columns."""
        return Points(*(tuple(_rows(x, index) for x in kind) for kind in (self.fixed, self.signed)))


def in_groups(x: Tensor, directions: int) -> Tensor:
    """A matrix [n, features] in some directions: sums over as many groups of features, with signs, over the root of
    their size.

    No two groups share a feature, so the directions are orthonormal. The tensor is read once, in order: a sketch by
    Gaussian directions takes six times as long, and tells no more.
    """

    n, width = x.shape
    size = width // directions
    if size <= 1:
        return x
    drawn = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size), device="cpu")
    signs = (drawn.to(x.device, x.dtype) * 2 - 1) * size**-0.5
    if x.mT.is_contiguous():
        sums = x.new_empty(directions, n)
        for row, part in zip(sums, x.mT[: size * directions].split(size), strict=True):
            torch.mv(part.mT, signs, out=row)
        return sums.mT
    sums, step = x.new_empty(n, directions), max(1, PIECE // width)
    for rows, part in zip(sums.split(step), x[:, : size * directions].split(step), strict=True):
        torch.mv(part.reshape(-1, size), signs, out=rows.view(-1))
    return sums


def squared_norms(points: Points) -> Tensor:
    """Squared norms [n]."""
    return sum(x.square().sum(1) for x in points.parts)  # type: ignore[return-value]


def evenly(n: int, count: int, device: torch.device) -> Tensor:
    """So many of n numbers, evenly spread, int64. The device is named: what transformers does to `torch.linspace`
    while it loads a model may leave it on the processor, whatever the device around it is."""
    return torch.linspace(0, n - 1, count, device=device).long()


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Some rows of a matrix, in memory as it is."""
    return x.mT.index_select(1, index).mT if x.mT.is_contiguous() else x.index_select(0, index)


def exact_distances(anchor: Points, source: Points, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distances [n] of points of the source from those of the anchor with the numbers ``pairs`` [n],
    and the signs [n] of the source's that make them least."""

    fixed, near, far = source.parts[0].new_zeros(3, len(pairs)).unbind(0)
    for x, y in zip(anchor.fixed, source.fixed, strict=True):
        for some, a, b in paired(x, y, pairs):
            fixed[some] += a.sub_(b).square_().sum(1)
    for x, y in zip(anchor.signed, source.signed, strict=True):
        for some, a, b in paired(x, y, pairs):
            near[some] += (a - b).square_().sum(1)
            far[some] += a.add_(b).square_().sum(1)
    flipped = far < near
    return fixed.add_(torch.where(flipped, far, near)), torch.where(flipped, -1.0, 1.0).to(fixed.dtype)


def paired(x: Tensor, y: Tensor, pairs: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Which points, rows of x by the numbers ``pairs``, and the rows of y, in pieces: some points, or some features
    of all where these are what lies apart in memory. What is gathered is new memory, which stays in the cache."""
    if x.mT.is_contiguous():
        step = max(1, PIECE // len(pairs))
        for a, b in zip(x.mT.split(step), y.mT.split(step), strict=True):
            yield slice(None), a.index_select(1, pairs).mT, b.mT
        return
    step = max(1, PIECE // max(1, x.shape[1]))
    for start in range(0, len(pairs), step):
        some = slice(start, start + step)
        yield some, x.index_select(0, pairs[some]), y[some]
