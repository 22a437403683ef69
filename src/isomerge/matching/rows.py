"""How the rows of two tensors stand to each other: all of them, in one compiled pass over the stored numbers.

A row of a fine-tune lies near the same row of its base, whatever was trained; the row of a stranger, of a neuron
that has gone to another place, or of a head that was turned lies at a cosine of about 0, within a few times one
over the root of its length. One pass tells distances and places, exactly, of every tensor of both models.

Sums are float32 over some thousand entries, then float64; entries of float64 are summed in it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from isomerge.passes import BITS, numbers_of

WIDE = 256
"""Entries that a row keeps at least where further leading axes count as rows: a cosine of few entries tells
little."""


@dataclass(frozen=True)
class Rows:
    """Sums over every row of two tensors of one shape, float64 [n] each."""

    anchor: np.ndarray
    """Squares of the first tensor's entries."""
    source: np.ndarray
    """Squares of the second's."""
    product: np.ndarray
    """Products of both's."""
    gap: np.ndarray
    """Squared differences."""
    unequal: np.ndarray
    """How many entries differ."""

    @property
    def is_finite(self) -> bool:
        """Whether all sums are numbers: no entry is NaN or infinite."""
        return all(bool(np.isfinite(getattr(self, field.name)).all()) for field in fields(self))

    @property
    def cosine(self) -> np.ndarray:
        """Of every row with its counterpart; 1 where both are zero."""
        norms = np.sqrt(self.anchor * self.source)
        zero = (self.anchor == 0) & (self.source == 0)
        return np.where(zero, 1.0, self.product / np.where(norms == 0, 1.0, norms))


def row_axes(shape: tuple[int, ...]) -> int:
    """How many leading axes number the rows of a tensor: none of a vector; one, or more where rows keep `WIDE`
    entries without them (experts, layers that are stacked)."""
    count = min(len(shape) - 1, 1)
    while 0 < count < len(shape) - 1 and int(np.prod(shape[count + 1 :])) >= WIDE:
        count += 1
    return max(count, 0)


def rows(anchor: Tensor, source: Tensor, *, columns: bool = False) -> Rows:
    """Sums over the rows of two tensors of one shape, of any floating-point types; a vector is one row.

    Args:
        anchor, source: on the CPU; not copied where they are contiguous and of one type of `BITS`.
        columns: over the columns instead, which are the last axis.
    """
    import isomerge.loops as loops  # numba: a quarter of a second

    if anchor.dtype != source.dtype or anchor.dtype not in BITS:
        wide = torch.float64 if torch.float64 in (anchor.dtype, source.dtype) else torch.float32
        anchor, source = anchor.to(wide), source.to(wide)
    count = int(np.prod(anchor.shape[: row_axes(tuple(anchor.shape))], dtype=np.int64))
    length = anchor.numel() // max(count, 1)
    x, y = (t.contiguous().view(BITS[t.dtype]).numpy().reshape(count, length) for t in (anchor, source))
    sums = np.zeros((5, length if columns else count))
    zero = np.zeros(1, np.float64 if anchor.dtype == torch.float64 else np.float32)
    kind, numbers = loops.kind_of(anchor.dtype), numbers_of(anchor.dtype)
    loops.compiled(loops.rows)(kind, x, y, numbers, zero, columns, sums)
    return Rows(*sums)
