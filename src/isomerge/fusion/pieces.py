"""Large tensors, worked on piece by piece.

Temporaries stay in the cache, and below the size that is mapped afresh each time (`isomerge.engine.memory`), which costs
more than the arithmetic; and tensors that are stored in half precision are never whole in memory in full precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 1 << 16
"""Entries of a piece."""


def wide_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """What is computed in: float64 where a tensor is, else float32, never half."""
    import torch

    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def pieces(tensors: Sequence[Tensor], out: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
    """The pieces of tensors of one size, in order, converted to the dtype of ``out``, and the place of each in ``out``.

    A piece may be the tensor's own memory: change none in place.
    """
    flat = [t.reshape(-1).split(PIECE) for t in tensors]
    for place, *parts in zip(out.view(-1).split(PIECE), *flat, strict=True):
        yield [part.to(out.dtype) for part in parts], place
