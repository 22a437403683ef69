"""Views of flat vectors, which lie in each vector of the same length alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class View:
    """A strided view of a flat vector, which must be contiguous."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, flat: Tensor) -> Tensor:
        """The view of this vector; writing to it writes to the vector."""
        return flat.as_strided(self.size, self.stride, flat.storage_offset() + self.offset)

    def permuted(self, order: Sequence[int]) -> View:
        """The same numbers with their dimensions in another order."""
        return View(tuple(self.size[k] for k in order), tuple(self.stride[k] for k in order), self.offset)

    def stacked(self, count: int, step: int) -> View:
        """As many views, each a step behind the one before, as one with a further first axis."""
        return View((count, *self.size), (step, *self.stride), self.offset)
