"""How the rows of two tensors stand to each other: all of them, in one compiled pass over the stored numbers.

A row of a fine-tune lies near the same row of its base, whatever was trained; the row of a stranger, of a neuron
that has gone to another place, or of a head that was turned lies at a cosine of about 0, within a few times one
over the root of its length. One pass tells distances and places, exactly, of every tensor of both models.

Sums are float32 over some thousand entries, then float64; entries of float64 are summed in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import torch
from torch import Tensor

WIDE = 256
"""Entries that a row keeps at least where further leading axes count as rows: a cosine of few entries tells
little."""
BITS = {
    torch.bfloat16: torch.uint16,
    torch.float16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""Types that are read as they are stored, and what numpy reads their bits as."""


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
    if anchor.dtype != source.dtype or anchor.dtype not in BITS:
        wide = torch.float64 if torch.float64 in (anchor.dtype, source.dtype) else torch.float32
        anchor, source = anchor.to(wide), source.to(wide)
    count = int(np.prod(anchor.shape[: row_axes(tuple(anchor.shape))], dtype=np.int64))
    length = anchor.numel() // max(count, 1)
    x, y = (t.contiguous().view(BITS[t.dtype]).numpy().reshape(count, length) for t in (anchor, source))
    sums = np.zeros((5, length if columns else count))
    _loop(anchor.dtype, columns)(x, y, _numbers(anchor.dtype), sums)
    return Rows(*sums)


@cache
def _numbers(dtype: torch.dtype) -> np.ndarray:
    """All numbers of a type in the order of their bits, float32, for types that are widened by looking them up."""
    if dtype == torch.bfloat16 or dtype not in BITS or BITS[dtype] == dtype:
        return np.zeros(1, np.float32)
    bits = torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int64)
    return bits.to(BITS[dtype]).view(dtype).float().numpy()


@cache
def _loop(dtype: torch.dtype, columns: bool) -> Callable[..., None]:
    """The compiled loop over numbers of a type."""
    import isomerge.matching.compiled_rows as loops  # numba: a quarter of a second

    kind = "bfloat16" if dtype == torch.bfloat16 else "float" if BITS[dtype] == dtype else "table"
    loop = getattr(loops, f"{kind}_{'columns' if columns else 'rows'}")
    entry = torch.zeros(1, dtype=dtype).view(BITS[dtype]).numpy().reshape(1, 1)
    return loops.compiled(loop, entry, entry, _numbers(dtype), np.zeros((5, 1)))
