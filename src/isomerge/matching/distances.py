"""Squared Frobenius distances and norms, summed piece by piece: temporaries stay in the cache."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from isomerge.pieces import PIECE
from isomerge.symmetry.blocks import Blocks

ROW, MANY_ROWS = 512, 128
"""Entries that are summed in float32, and from how many such rows on: rounding of a row is 3e-7 of it, and averages
out to less than 1e-8 over many. Small tensors, whose descents are followed to the last digit, are summed in
float64."""


def distance(anchor: Blocks, moved: Blocks) -> float:
    """The squared Frobenius distance of two models' blocks."""
    return sum(squared_distance(t, moved[block]) for block, t in anchor.items())


def squared_distance(a: Tensor, b: Tensor) -> float:
    """The squared Frobenius distance of two tensors, summed in float64."""

    total, exact = 0.0, not (is_half(a) and is_half(b))
    # in pieces, whose temporaries stay in the cache: mapping large ones afresh costs ten times the arithmetic
    for x, y in zip(*(t.reshape(-1).split(PIECE) for t in torch.broadcast_tensors(a, b)), strict=True):
        total += square_of(_wide(x) - _wide(y), exact=exact)
    return total


def squared_distance_and_norm(a: Tensor, b: Tensor) -> tuple[float, float]:
    """`squared_distance` of two tensors of one shape, and `squared_norm` of the first, in one pass."""
    if not a.is_floating_point():
        return squared_distance(a, b), 0.0
    gap, norm, exact = 0.0, 0.0, not (is_half(a) and is_half(b))
    for x, y in zip(a.reshape(-1).split(PIECE), b.reshape(-1).split(PIECE), strict=True):
        wide = _wide(x)
        gap, norm = gap + square_of(wide - _wide(y), exact=exact), norm + square_of(wide, exact=not is_half(a))
    return gap, norm


def squared_norm(a: Tensor) -> float:
    """The squared Frobenius norm of a tensor, summed in float64; integers are no weights, and have none: beside one
    table of hash multipliers all distances would be nothing."""
    if not a.is_floating_point():
        return 0.0
    # not as a distance to zero: broadcasting would fill a tensor of its size
    return sum(square_of(_wide(x), exact=not is_half(a)) for x in a.reshape(-1).split(PIECE))


def is_half(x: Tensor) -> bool:
    """Whether a tensor is stored in half precision or less, so that its squares may be summed in float32."""
    return x.is_floating_point() and x.element_size() <= 2


def square_of(x: Tensor, *, exact: bool) -> float:
    """The sum of squares of a piece; where it need not be exact, of float32 in float32: a third of the time.

    What was stored in half precision is rounded by more than the 1e-5 that partial sums stay within; descents and
    differences of sums need float64.
    """

    if not exact:
        square = float(torch.dot(x, x))
        if isfinite(square):
            return square
    elif x.dtype == torch.float32 and x.numel() >= MANY_ROWS * ROW and x.numel() % ROW == 0:
        # short rows in float32, their sums in float64: two thirds of the time of float64 throughout
        square = float(torch.linalg.vector_norm(x.view(-1, ROW), dim=1).double().square().sum())
        if isfinite(square):
            return square
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, integers as float64: differences are never taken in fewer bits."""
    if not x.is_floating_point():
        return x.double()
    return x.float() if x.element_size() < 4 else x
