"""The common mean under an algorithm of pairs: the paper's matching of many models without an anchor.

Algorithm 1 of the paper matches one model onto another, unit by unit. Of many models, each is matched onto the
mean of all others as they stand, in turn, until nothing is gained: generalised Procrustes analysis (Gower, 1975)
with the paper's step. Units do not depend on one another, so that no more than one unit of all models is in memory.
The first model stays where it is, as only where models lie to each other counts; rescaling, which changes norms, is
thereby measured in its coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.matching.distances import squared_distance
from isomerge.matching.local import move_unit
from isomerge.models.unit_plan import unit_bytes
from isomerge.progress import Observer
from isomerge.solve.pairs.pair import PairSolver, overflow_told
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.units import Unit

SWEEPS = 50
"""More than any unit has needed; a step never raises the sum of squared distances, so that it ends by itself."""
GAIN = 1e-6
"""A sweep that gains less than this fraction is the last."""


def solve_unit_means(
    solvers: Sequence[PairSolver], shares: Sequence[float], observer: Observer
) -> tuple[dict[str, Any], list[Alignment]]:
    """Match all models onto their common mean, unit by unit.

    Args:
        solvers: one per model but the first, which is the anchor of all; unguarded.
        shares: how much every model counts in the mean, the first one's first.
        observer: told of progress.

    Returns:
        A report (``objective``: the weighted squared distance of all models to their mean, before and after;
        ``sweeps``: the most of any unit), and the element of every model but the first.
    """
    plan = solvers[0].plan
    units = [unit for unit in plan.units if plan.is_matched(unit)]
    elements: list[dict[str, Tensor]] = [{} for _ in solvers]
    before = after = 0.0
    sweeps = done = 0
    total = sum(unit_bytes(solvers[0].anchor, unit) for unit in units)
    for unit in units:
        observer(f"the common mean: {unit.key}", done, total)
        done += unit_bytes(solvers[0].anchor, unit)
        mean = UnitMean(solvers, unit, shares)
        before += mean.spread()
        sweeps = max(sweeps, mean.solve())
        after += mean.spread()
        for kept, own in zip(elements, mean.elements, strict=True):
            kept.update(own)
    spec = plan.selection.spec
    report = {"objective": [before, after], "sweeps": sweeps, "shares": list(shares)}
    return report, [Alignment(spec, own) for own in elements]


class UnitMean:
    """One unit of all models, and where each of them has come.

    Args:
        solvers, shares: see `solve_unit_means`.
        unit: the unit.
    """

    def __init__(self, solvers: Sequence[PairSolver], unit: Unit, shares: Sequence[float]) -> None:
        self.solvers, self.unit, self.shares = solvers, unit, shares
        first = solvers[0]
        self.stored = [first.load(first.anchor, unit), *(s.load(s.source, unit) for s in solvers)]
        self.placed = list(self.stored)
        self.elements: list[dict[str, Tensor]] = [{} for _ in solvers]

    def solve(self) -> int:
        """Match every model but the first onto the others' mean until nothing is gained; the sweeps it took."""
        last = self.spread()
        for sweep in range(1, SWEEPS + 1):
            for number in range(1, len(self.placed)):
                self._match(number)
            spread = self.spread()
            if spread >= last * (1 - GAIN):
                return sweep
            last = spread
        return SWEEPS

    def _match(self, number: int) -> None:
        """Match one model onto the mean of the others, from where it is stored; kept where it is nearer so."""
        solver, others = self.solvers[number - 1], self._mean(without=number)
        with overflow_told(solver, self.unit):
            moved = move_unit(solver.plan.selection, others, self.stored[number], {}, guard=False)
        if _distance(others, moved.blocks) < _distance(others, self.placed[number]):
            self.placed[number], self.elements[number - 1] = moved.blocks, dict(moved.alignment.elements)

    def _mean(self, without: int | None = None) -> Blocks:
        """The weighted mean of all models as they are placed, or of all but one."""
        chosen = [k for k in range(len(self.placed)) if k != without]
        whole = sum(self.shares[k] for k in chosen)
        mean: Blocks = {}
        for block, first in self.placed[0].items():
            if not first.is_floating_point():
                mean[block] = first
                continue
            mean[block] = sum((self.placed[k][block] * (self.shares[k] / whole) for k in chosen), first * 0)
        return mean

    def spread(self) -> float:
        """The weighted squared distance of all models to their mean."""
        mean = self._mean()
        return sum(share * _distance(mean, blocks) for share, blocks in zip(self.shares, self.placed, strict=True))


def _distance(mean: Blocks, tensors: Blocks) -> float:
    return sum(squared_distance(x, tensors[block]) for block, x in mean.items() if x.is_floating_point())
