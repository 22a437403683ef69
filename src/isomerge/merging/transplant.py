"""Task vectors on a new base: what a fine-tune learned on one base, moved to where another base has the same
neurons.

The source base is aligned onto the target base; its alignment g moves the fine-tune as well, and the method is
given ``target + g fine-tune - g source base`` in place of the fine-tune. (Re-basin of task vectors: Rinaldi et al.
2025, "Update your transformer to the latest release: re-basin of task vectors".)
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from isomerge.models.recognised import Model
from isomerge.solve.pairs.pair import Blocks, PairSolver, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit


class TransplantSolver:
    """Brings a fine-tune's task vector to another base; stands where a `PairSolver` does.

    Args:
        pair: the target base and the source base.
        tuned: the fine-tune of the source base.
    """

    def __init__(self, pair: PairSolver, tuned: Model) -> None:
        self.pair, self.tuned = pair, tuned

    @property
    def source(self) -> Model:
        """The fine-tune."""
        return self.tuned

    @property
    def device(self) -> str:
        """Where the bases' units are matched."""
        return self.pair.device

    def load(self, model: Model, unit: Unit, *, mapped: bool = False) -> Blocks:
        """A unit's blocks of one model in the working dtype; see `UnitSolver.load`."""
        return self.pair.load(model, unit, mapped=mapped)

    def moves(self, unit: Unit) -> bool:
        """Every unit: its task vector is put on the target."""
        return True

    def solve(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        """Match the source base's unit, move the fine-tune's alike, and put its task vector on the target.

        The distances of the result are those of the bases.
        """
        result, base = self.pair.solve(unit, anchor, self.pair.load(self.pair.source, unit))
        self.alignment(result.elements).act(source)
        transplanted: Blocks = {}
        for block in unit.blocks:
            transplanted[block] = source[block]
            if source[block].is_floating_point():
                transplanted[block] = anchor[block] + (source[block] - base[block])
        return result, transplanted

    def still(self, unit: Unit, squares: Mapping[Block, tuple[float, float]]) -> UnitResult:
        """As of the pair; no unit is still (see `moves`)."""
        return self.pair.still(unit, squares)

    def alignment(self, elements: dict[str, Tensor]) -> Alignment:
        """What moves the source base, and the fine-tune with it."""
        return self.pair.alignment(elements)
