"""The solution of a merge without an anchor, computed once and kept in the folder of the unfinished output.

Under an algorithm of pairs it is the paper's matching of many models without an anchor. Algorithm 1 of the paper
matches one model onto another, unit by unit. Of many models, each is matched onto the mean of all others as they
stand, in turn, until nothing is gained: generalised Procrustes analysis (Gower, 1975) with the paper's step. Units
do not depend on one another, so that no more than one unit of all models is in memory. The first model stays where
it is, as only where models lie to each other counts; rescaling, which changes norms, is thereby measured in its
coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.distances import squared_distance
from isomerge.matching.local import move_unit
from isomerge.models.layer_norm_form import in_layer_norm_form
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import unit_bytes
from isomerge.observe.live.accelerator import CPU, computing_on
from isomerge.progress import Observer
from isomerge.solve.canonical.canonical_units import CanonicalUnits
from isomerge.solve.learn.learner import learn_together
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedSimplex
from isomerge.solve.many.mean_solver import ManySolver
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs.match_evidence import MatchEvidence
from isomerge.solve.pairs.pair import PairSolver, overflow_told
from isomerge.solve.unfinished_run import UnfinishedRun
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.units import Unit

DONE = "common mean"
SWEEPS = 50
"""More than any unit has needed; a step never raises the sum of squared distances, so that it ends by itself."""
GAIN = 1e-6
"""A sweep that gains less than this fraction is the last."""


def shares_of(weights: Sequence[float]) -> list[float]:
    """How much every model counts in the common mean: the merge's weights where all are positive, else all
    alike."""
    if min(weights) <= 0:
        return [1 / len(weights)] * len(weights)
    return [w / sum(weights) for w in weights]


def prepare_mean(
    run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching, weights: Sequence[float]
) -> dict[str, Any]:
    """Solve all sources at once, or take the solution of an interrupted run; ``given`` of every solver is set.

    Args:
        run: the unfinished output.
        solvers: one per model but the first, which is the anchor of all; unguarded.
        matching: activations and learning.
        weights: of the merge.

    Returns:
        A report: the objective by pass, of every anchor and of the usual sequence, and the gains over them.
    """
    paths = [run.blob(f"solution-{k}.safetensors") for k in range(len(solvers))]
    report = run.done(DONE)
    if report is None:
        report, alignments = _solve(run, solvers, matching, weights)
        for solver, path, alignment in zip(solvers, paths, alignments, strict=True):
            alignment.save(path)
            solver.given = alignment
        run.commit(DONE, report)
    else:
        for solver, path in zip(solvers, paths, strict=True):
            solver.given = Alignment.load(path, solver.source.spec)
    for solver in solvers:
        solver.norms_stay = "learned" in report
    return report


def undisguised(solvers: Sequence[PairSolver]) -> list[Model]:
    """All models read without what LayerNorm leaves free, as pairs of them are where some unit of one differs from
    the first one's by much of it; none where no unit does. What is found so is brought onto the first's norms when
    it is written (`PairSolver.solve`)."""
    if all(solver.undisguised() is solver for solver in solvers):
        return []
    models = [in_layer_norm_form(model) for model in (solvers[0].anchor, *(solver.source for solver in solvers))]
    return models if all(model.form is not None for model in models) else []


def _solve(
    run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching, weights: Sequence[float]
) -> tuple[dict[str, Any], list[Alignment]]:
    first, observer = solvers[0], run.observer
    if not first.plan.selection.gauge:  # an algorithm of pairs
        return solve_unit_means(solvers, shares_of(weights), observer)
    stored = [first.anchor, *(solver.source for solver in solvers)]
    models = stored if matching.needs_models else undisguised(solvers) or stored
    evidence = MatchEvidence(matching, first.anchor, observer)
    every = [evidence.of_anchor, *(evidence.of_source(solver.source, k) for k, solver in enumerate(solvers))]
    known = [activations for activations in every if activations is not None]
    units = CanonicalUnits(
        models, first.plan, first.dtype, shares_of(weights), known or None, matching.evidence, room=first.room
    )
    with computing_on(first.device, "the common mean"):
        units.go(first.device)
        solver = ManySolver(units, observer)
        report = solver.solve()
    units.go(CPU)
    solver.places = solver.places.to(CPU)
    learned: list[Any] = [None] * len(solvers)
    if (examples := evidence.learned_from) is not None:
        simplex = MatchedSimplex.of(solver, matching.settings or LearnSettings())
        try:
            together = learn_together(simplex, examples, run.blob, observer)
        except IsomergeError as error:
            if not matching.tentative:
                raise
            report["not_learned"] = str(error)
        else:
            report["learned"], learned = together.report, together.elements
    return report, [solver.alignment(m, elements) for m, elements in enumerate(learned, 1)]


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
