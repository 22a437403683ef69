"""The solution of a merge without an anchor, computed once and kept in the folder of the unfinished output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.models.layer_norm_form import form_of, in_layer_norm_form
from isomerge.models.recognised import Model
from isomerge.observe.live.accelerator import CPU, computing_on
from isomerge.records import Json
from isomerge.solve.canonical.canonical_units import CanonicalUnits
from isomerge.solve.learn.learner import learn_together
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedSimplex
from isomerge.solve.many.mean_solver import ManySolver
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs.match_evidence import MatchEvidence
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.unfinished_run import UnfinishedRun
from isomerge.symmetry.alignment import Alignment

DONE = "common mean"


def shares_of(weights: Sequence[float]) -> list[float]:
    """How much every model counts in the common mean: the merge's weights where all are positive, else all
    alike."""
    if min(weights) <= 0:
        return [1 / len(weights)] * len(weights)
    return [w / sum(weights) for w in weights]


def prepare_mean(
    run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching, weights: Sequence[float]
) -> tuple[list[PairSolver], Json]:
    """Solve all sources at once, or take the solution of an interrupted run.

    Args:
        run: the unfinished output.
        solvers: one per model but the first, which is the anchor of all; unguarded.
        matching: activations and learning.
        weights: of the merge.

    Returns:
        The solvers with what is ``given`` by it, and a report: the objective by pass, of every anchor and of the
        usual sequence, and the gains over them.
    """
    paths = [run.blob(f"solution-{k}.safetensors") for k in range(len(solvers))]
    report = run.done(DONE)
    if report is None:
        report, alignments = _solve(run, solvers, matching, weights)
        for path, alignment in zip(paths, alignments, strict=True):
            alignment.save(path)
        run.commit(DONE, report)
    else:
        alignments = [Alignment.load(path, s.source.spec) for s, path in zip(solvers, paths, strict=True)]
    stay = "learned" in report
    solved = [replace(s, given=g, norms_stay=stay) for s, g in zip(solvers, alignments, strict=True)]
    return solved, report


def undisguised(solvers: Sequence[PairSolver]) -> list[Model]:
    """All models read without what LayerNorm leaves free, as pairs of them are where some unit of one differs from
    the first one's by much of it; none where no unit does. What is found so is brought onto the first's norms when
    it is written (`PairSolver.solve`)."""
    if all(solver.undisguised() is solver for solver in solvers):
        return []
    models = [in_layer_norm_form(model) for model in (solvers[0].anchor, *(solver.source for solver in solvers))]
    return models if all(map(form_of, models)) else []


def _solve(
    run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching, weights: Sequence[float]
) -> tuple[Json, list[Alignment]]:
    first, observer = solvers[0], run.observer
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
