"""One unit of the anchor and of the source, in their canonical gauges."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.solve.canonical.canonical_units import Tensors, moved, weights_of
from isomerge.symmetry.alignment import Alignment


@dataclass(frozen=True)
class UnitPair:
    """One unit of both models."""

    anchor: Tensors
    source: Tensors

    def moved(self, g: Alignment) -> UnitPair:
        """The unit with its source moved by an element; what is not moved is shared with this one."""
        return UnitPair(self.anchor, moved(g, self.source))

    def without_taps(self) -> UnitPair:
        """The weights of the unit alone."""
        return UnitPair({**weights_of(self.anchor)}, {**weights_of(self.source)})
