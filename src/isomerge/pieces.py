"""Large tensors, worked on piece by piece.

Temporaries stay in the cache, and below the size that is mapped afresh each time (`isomerge.models.peak_memory`),
which costs more than the arithmetic; and tensors that are stored in half precision are never whole in memory in
full precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 1 << 17
"""Entries of a piece: half a megabyte in float32, below what is mapped afresh (`isomerge.models.peak_memory`)."""


def wide_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """What is computed in: float64 where a tensor is, else float32, never half."""
    import torch

    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def pieces(tensors: Sequence[Tensor], out: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
    """The pieces of tensors of one size, in order, converted to the dtype of ``out``, and the place of each in
    ``out``.

    A piece may be the tensor's own memory: change none in place.
    """
    for place, *parts in zip(*(t.reshape(-1).split(PIECE) for t in (out, *tensors)), strict=True):
        yield [part.to(out.dtype) for part in parts], place


def all_finite(tensor: Tensor) -> bool:
    """Whether a floating-point tensor has no NaN and no infinite value."""
    # a sum is not finite where an entry is not, and rarely else; that of x - x is zero exactly where all entries
    # are
    pieces = tensor.reshape(-1).split(PIECE)
    if tensor.element_size() == 1:  # float8 has no arithmetic
        pieces = (x.float() for x in pieces)
    return all(isfinite(float(x.sum())) or bool((x - x).sum() == 0) for x in pieces)
