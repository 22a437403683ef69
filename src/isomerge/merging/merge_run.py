"""Merging: align every model onto one (or onto their common mean), fuse unit by unit, write an ordinary
checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from isomerge.fusion.fusion import Fusion
from isomerge.merging.finishing import finish
from isomerge.merging.head_folders import apart_names
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.roles import roles_of, weights_of
from isomerge.run.run_report import report_of
from isomerge.run.run_verdict import noted, tell_ahead
from isomerge.run.streaming import UnitSolver, elements_of_results, prepare_votes, stream_units, write_alone
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.match_inputs import check_data, with_generated
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import OURS
from isomerge.solve.pairs.pair import CommonGains, UnitResult
from isomerge.symmetry.alignment import Alignment


class Choice(Protocol):
    """Chooses how aligned models are fused, once they are aligned and before anything is fused
    (`isomerge.tuning.tuner`)."""

    report: dict[str, Any]
    """What the run's report says of it, as ``tune``."""
    notes: list[str]

    files: dict[str, bytes]
    """Further files of the output, by their names."""

    def key(self, plan: MergePlan) -> str:
        """What the output depends on."""
        ...

    def __call__(
        self, plan: MergePlan, stream: StreamWriter, used: Sequence[UnitSolver]
    ) -> tuple[Fusion, Sequence[UnitSolver]]:
        """The fusion of the same method, and what brings the units together from then on."""
        ...


def run_plan(plan: MergePlan, choose: Choice | None = None) -> dict[str, Any]:
    """Match, fuse and write what was planned; the report. ``choose`` may give it another fusion of the same
    method."""
    key = plan.key() if choose is None else choose.key(plan)
    if plan.matching.data is not None and (plan.matching.for_method or not plan.matches):
        check_data(plan.matching, plan.donor)  # else whoever matches reads them before anything takes its time
    if plan.matches and plan.matching.learn is None:  # which takes its time, and what is learned may well work
        tell_ahead(plan.verdict())
    apart = apart_names(plan.heads, plan.donor)
    with StreamWriter(plan.template, plan.output, key, others=plan.read, apart=apart) as stream:
        plan = replace(plan, matching=with_generated(plan.matching, plan.models, stream))
        plan, used, how = _matched(plan, stream)
        if choose is not None:
            fusion, used = choose(plan, stream, used)
            plan = replace(plan, request=replace(plan.request, fusion=fusion))
            how |= {"tune": choose.report}
        fuser = plan.fuser
        if plan.runs:
            # few methods run the models
            from isomerge.merging.forward_fusion import fuse_forward

            results, moves = fuse_forward(plan, stream, used, key)
            how |= {"forward": fuser.report}
            if moves and plan.matching.match not in SOFT:
                solvers = [replace(solver, given=g) for solver, g in zip(plan.solvers, moves, strict=True)]
                plan = replace(plan, solvers=solvers)
        else:
            fuse = partial(fuser.fuse, form=stream.form)
            pieces = plan.fusion.method.elementwise
            results = stream_units(stream, used, plan.plan, fuse, plan.target, piecewise=pieces)
            fuser.take_notes(results)
        write_alone(stream, plan.plan, plan.donor, plan.dtype, donor_moved(plan, results))
        beside = [base for base in plan.bases if base is not None]
        read = [plan.target, *plan.sources]
        report = report_of("merge", read, results, beside, **fuser.described(len(plan.models)), **how)
        alignments: list[Alignment] = []
        if plan.aligns and plan.matching.match not in SOFT:
            alignments = [s.alignment(elements_of_results(r)) for s, r in zip(plan.solvers, results, strict=True)]
            if plan.gains is not None:
                alignments = [plan.gains.written @ g for g in alignments]
        report["roles"] = roles_of(plan, report)
        if report["weights"] is not None:  # of the models that are fused, in the order of ``models``
            weight_of = dict(zip(map(id, plan.models), weights_of(plan.fusion, len(plan.models)), strict=True))
            report["weights"] = [w for model in read if (w := weight_of[id(model)]) is not None]
        report["verdict"] = plan.verdict(report)
        report["notes"] += [*noted(report["verdict"]), *([] if choose is None else choose.notes)]
        report["notes"] = [*map(plan.request.say or str, report["notes"])]
        finish(plan, stream, report, alignments, {} if choose is None else choose.files)
    return report


def donor_moved(plan: MergePlan, results: Sequence[Sequence[UnitResult]]) -> Alignment | None:
    """What moves the tensors that the first model alone has; None where it stays.

    Args:
        plan: of the merge, its models matched.
        results: of every solver, unit by unit.
    """
    place = plan.places[0] - 1
    moved = None
    if place >= 0 and plan.matches:
        moved = plan.solvers[place].alignment_as_read(elements_of_results(results[place]))
    if plan.gains is None:
        return moved
    return plan.gains.written if moved is None else plan.gains.written @ moved


def _matched(plan: MergePlan, stream: StreamWriter) -> tuple[MergePlan, Sequence[UnitSolver], dict[str, Any]]:
    """The plan with the gains that its models are written with, what brings the units together, once all passes
    over whole models are done, and what the report says of it."""
    request, matching = plan.request, plan.matching
    used: Sequence[UnitSolver] = plan.solvers
    streams: list[dict[str, Any]] = []
    mean = None
    if plan.matches:
        # every solver there is: a merge of models as they are stored does without
        from isomerge.merging.matched_models import match_models

        plan, used, streams, mean = match_models(plan, stream)
    if not streams and mean is None:
        used = prepare_votes(stream, plan.solvers)
        plan = replace(plan, solvers=used)
    if (gains := _gains(plan, stream)) is not None:
        used = [replace(solver, gains=gains) for solver in plan.solvers]
        plan = replace(plan, solvers=used, gains=gains)
    if any(origins := plan.bearings.origins):
        from isomerge.merging.transplant import TransplantSolver

        used = [
            TransplantSolver(solver, source) if origin else solver
            for solver, source, origin in zip(plan.solvers, plan.sources, origins, strict=True)
        ]
    ours, decided = matching.match == OURS, plan.bearings.decision
    how: dict[str, Any] = {"align": plan.aligns, "spaces": plan.spaces, "layers": request.layers}
    how |= {"decided": None if decided is None else decided.document()}
    how |= {"vocabulary": plan.vocabulary} if plan.vocabulary else {}
    how |= {"streams": streams if ours else []}
    how |= {"heads": request.heads} if plan.heads.apart else {}
    how |= {} if ours else {"match": {"name": matching.match, "sources": streams}}
    how |= {"anchor": "none", "mean": mean} if mean is not None else {}
    return plan, used, how


def _gains(plan: MergePlan, stream: StreamWriter) -> CommonGains | None:
    """Where streams were turned: the gains that all models have in common, in which they are fused and written.

    Methods that run the aligned models are given them with the anchor's.
    """
    if plan.runs or plan.matching.match != OURS or plan.plan.selection.frame is None:
        return None
    # where streams are turned, which is rare where nothing is matched
    from isomerge.solve.pairs.written_gains import prepare_gains

    return prepare_gains(stream, plan.solvers)
