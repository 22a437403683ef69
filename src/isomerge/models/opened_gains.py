"""A model read without gains of zero: the same function with gains of one there (`isomerge.models.zero_gains` finds
it)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isomerge.symmetry.blocks import Block
from isomerge.symmetry.stage import Stage
from isomerge.symmetry.units import elements_of


@dataclass(frozen=True)
class OpenedGains:
    """What makes of a model's blocks those of the same function without gains of zero."""

    scales: frozenset[str]
    """The scales whose gains were looked at."""
    unread: Stage
    """Takes from every map what a gain of zero hides: zero on the maps' side."""
    gains: frozenset[Block]
    """The gains that have zeros."""

    def applied(self, block: Block, tensor: Tensor) -> Tensor:
        """One block, whole; the given one where no zero concerns it."""
        if block in self.gains:
            return tensor.masked_fill(tensor + block.line.less == 0, 1 - block.line.less)
        if not any(key in self.unread for key in elements_of(self.unread.spec, block)):
            return tensor
        return self.unread.applied({block: tensor})[block]
