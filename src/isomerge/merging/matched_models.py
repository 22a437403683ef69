"""The models of a merge matched by passes over whole models, before any unit is brought together: by our solvers,
by those of a common mean, or by published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isomerge.evidence.distance import summarise
from isomerge.merging.endpoints import write_endpoints
from isomerge.merging.merge_plan import Matched, MergePlan
from isomerge.models.onto_anchor import read_onto
from isomerge.records import Json
from isomerge.run.streaming import UnitSolver
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.many.mean_solutions import prepare_mean
from isomerge.solve.match_names import SOFT, published
from isomerge.solve.match_options import OURS
from isomerge.solve.pairs.pair import PairSolver, gaps_of
from isomerge.solve.pairs.solutions import prepare_solutions


def match_models(plan: MergePlan, stream: StreamWriter) -> tuple[MergePlan, Sequence[UnitSolver], Matched]:
    """Match the models of a plan in which any is matched: the plan with what its solvers are given, what brings the
    units together, and what was found."""
    matching, solvers = plan.matching, plan.solvers
    if plan.request.anchor == "none":
        _carry(plan)
        weights = plan.fusion.weights(len(plan.models))
        solvers, mean = prepare_mean(stream, solvers, matching, [weights[k] for k in plan.bearings.order])
        return replace(plan, solvers=solvers), solvers, Matched(mean=mean)
    if matching.match in SOFT:
        solvers, before = _moved_first(plan, stream)
        used, maps = published().prepare_transport(stream, solvers, matching)
        return plan, used, Matched([{**report, **more} for report, more in zip(maps, before, strict=True)])
    _carry(plan)
    solvers, streams = prepare_solutions(stream, solvers, matching)
    return replace(plan, solvers=solvers), solvers, Matched(streams)


def _carry(plan: MergePlan) -> None:
    """Have the sources read with the first model's constants, where these may stand elsewhere."""
    matching = plan.matching
    if matching.match == OURS and matching.learn is None and plan.plan.norms and not any(plan.bearings.origins):
        for solver in (solver for solver in plan.solvers if not solver.left):
            read_onto(solver.anchor, solver.source)


def _moved_first(plan: MergePlan, stream: StreamWriter) -> tuple[Sequence[PairSolver], list[Json]]:
    """The pairs that are transported: as they are stored, or with the sources where the paper's algorithm moves
    them; and what to tell of that, source by source."""
    if plan.first is None:
        return plan.solvers, [{} for _ in plan.solvers]
    device = plan.matching.matching_device
    pairs = [
        PairSolver(plan.target, source, plan.first, plan.dtype, guard=False, device=device)
        for source in plan.sources
    ]
    models, results, _ = write_endpoints(stream, pairs, plan.key(), name="first")
    moved = [
        PairSolver(plan.target, model, plan.plan, plan.dtype, guard=False, device=device) for model in models[1:]
    ]
    reports = [
        {"first": {"spaces": plan.bearings.spaces, "distance": summarise(gaps_of(r)).document()}} for r in results
    ]
    return moved, reports
