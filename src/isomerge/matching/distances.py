"""Squared Frobenius distances and norms, summed piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.passes import Pass, squares
from isomerge.pieces import wide_dtype
from isomerge.records import Record, optional
from isomerge.symmetry.blocks import Blocks


class TensorGap(Record):
    """How far a block is from its counterpart: squared Frobenius norms in the anchor's coordinates."""

    tensor: str
    spaces: Sequence[str]
    layer: int | None
    norm: float
    before: float
    after: float
    matrix: bool = False
    rounding: float | None = optional()
    """What rounding does to it, where it is written."""
    tolerance: float | None = optional()
    """The most that leaves the function as it was."""


@dataclass(frozen=True)
class BlockResidual:
    """What is left between a block of both models."""

    tensor: str
    size: int
    residual: float
    """A squared distance."""
    norm: float
    """Squared."""
    peak_residual: float
    peak: float


def distance(anchor: Blocks, moved: Blocks) -> float:
    """The squared Frobenius distance of two models' blocks."""
    return sum(squared_distance(t, moved[block]) for block, t in anchor.items())


def squared_distance(a: Tensor, b: Tensor) -> float:
    """The squared Frobenius distance of two tensors, which broadcast; never taken in less than float32, and summed
    in float64 unless both are stored in half precision."""
    return _squares(*torch.broadcast_tensors(a, b))[0]


def squared_distance_and_norm(a: Tensor, b: Tensor) -> tuple[float, float]:
    """`squared_distance` of two tensors of one shape, and `squared_norm` of the first, in one pass."""
    gap, norm = _squares(a, b)
    return gap, norm if a.is_floating_point() else 0.0


def squared_norm(a: Tensor) -> float:
    """The squared Frobenius norm of a tensor, summed in float64; integers are no weights, and have none: beside one
    table of hash multipliers all distances would be nothing."""
    return _squares(a)[1] if a.is_floating_point() else 0.0


def _squares(a: Tensor, b: Tensor | None = None) -> tuple[float, float]:
    """The squared distance of two tensors of one shape, and the first one's squared norm, piece by piece."""
    every = [t if t.is_floating_point() else t.double() for t in (a, *(() if b is None else (b,)))]
    on_cpu = all(t.device.type == "cpu" for t in every)
    if on_cpu and all(t.dtype == wide_dtype(every) for t in every):
        norm, gap = squares(*every)
        return gap, norm
    if on_cpu:
        reading = Pass(every, wide_dtype(every))
        reading.run()
        return reading.sums[-1].gap, reading.sums[0].square
    x, *others = (t.double() for t in every)
    return sum(float((x - y).square().sum()) for y in others), float(x.square().sum())
