"""How sure a canonical form is: which of its choices another rounding would have made otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isomerge.quotient.representative import Gap
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.element_key import ElementKey

CLOSE = 1e-6
"""A gap below this is told of: float32 weights carry about a tenth of it as rounding."""
NOTHING = 1e-9
"""A choice that moves the weights by no more of their norm is none."""


@dataclass
class Canonical:
    """The element that moves a model to its representative, and how sure every choice was."""

    alignment: Alignment
    gaps: list[Gap]
    dead: list[str]
    """Elements of blocks that have no balanced point (dead or rank-deficient)."""
    norm: float
    """The Frobenius norm of the representative."""
    notes: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """The degeneracy report, in JSON: per space and kind the smallest gap, and by how much the other choice
        moves the weights, as a share of their norm; ``ambiguous`` are the choices that rounding may make."""
        worst: dict[tuple[str, str], Gap] = {}
        for gap in sorted(self.gaps, key=lambda gap: gap.value):
            worst.setdefault((ElementKey.of(gap.element).name, gap.kind), gap)
        shown = [self._shown(gap) for gap in worst.values()]
        close = [self._shown(gap) for gap in sorted(self.gaps, key=lambda g: g.value) if gap.value < CLOSE]
        close = [
            choice for choice in close if choice["moves"] > NOTHING
        ]  # a direction that no weight has is no choice
        return {"gaps": shown, "ambiguous": close, "dead": sorted(self.dead), "unique": not close and not self.dead}

    def _shown(self, gap: Gap) -> dict[str, Any]:
        moves = (max(gap.weight, 0.0) ** 0.5) / max(self.norm, 1e-300)
        return {"element": gap.element, "kind": gap.kind, "gap": gap.value, "moves": moves}
