"""Merging: align every model onto one (or onto their common mean), fuse unit by unit, write an ordinary
checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from isomerge.evidence.distance import why_risen
from isomerge.fusion.fusion import Fusion
from isomerge.merging.finishing import COMMON, MergeReport, finish, parts_of, weights_of
from isomerge.merging.fusing import Fuser, said_of
from isomerge.merging.heads import apart_names
from isomerge.merging.merge_plan import Matched, MergePlan
from isomerge.options import unused
from isomerge.records import Json, Record
from isomerge.run.run_report import Match, moves_of, run_notes, run_of
from isomerge.run.run_verdict import noted, tell_ahead
from isomerge.run.streaming import UnitSolver, elements_of_results, prepare_votes, stream_units, write_alone
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.match_inputs import check_data, with_generated
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import OURS
from isomerge.solve.pairs.pair import CommonGains, UnitResult
from isomerge.symmetry.alignment import Alignment


@dataclass(frozen=True)
class Chosen:
    """How aligned models are fused."""

    fusion: Fusion
    """Of the plan's method."""
    used: Sequence[UnitSolver]
    """What brings the units together from then on."""
    report: Record
    """What the run's report says of it, as ``tune``."""
    outcome: Record
    """The same for who runs it, with what another run would say otherwise."""
    notes: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files of the output, by their names."""


class Choice(Protocol):
    """Chooses how aligned models are fused, once they are aligned and before anything is fused
    (`isomerge.tuning.tuner`)."""

    def key(self, plan: MergePlan) -> str:
        """What the output depends on."""
        ...

    def __call__(self, plan: MergePlan, stream: StreamWriter, used: Sequence[UnitSolver]) -> Chosen:
        """What is chosen, where ``used`` brings the units together."""
        ...


def run_plan(plan: MergePlan, choose: Choice | None = None) -> MergeReport:
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
        plan, used, matched = _matched(plan, stream)
        chosen = None
        if choose is not None:
            chosen = choose(plan, stream, used)
            plan, used = replace(plan, request=replace(plan.request, fusion=chosen.fusion)), chosen.used
        fuser, forward = plan.fuser, None
        if plan.runs:
            # few methods run the models
            from isomerge.merging.forward_fusion import fuse_forward

            fused = fuse_forward(plan, stream, used, key)
            results, said, forward = fused.results, fused.said, fused.report
            if fused.moves and plan.matching.match not in SOFT:
                solvers = [replace(solver, given=g) for solver, g in zip(plan.solvers, fused.moves, strict=True)]
                plan = replace(plan, solvers=solvers)
        else:
            fuse = partial(fuser.fuse, form=stream.form)
            pieces = plan.fusion.method.elementwise
            results = stream_units(stream, used, plan.plan, fuse, plan.target, piecewise=pieces)
            said = said_of(results)
        write_alone(stream, plan.plan, plan.donor, plan.dtype, donor_moved(plan, results))
        alignments: list[Alignment] = []
        if plan.aligns and plan.matching.match not in SOFT:
            alignments = [s.alignment(elements_of_results(r)) for s, r in zip(plan.solvers, results, strict=True)]
            if plan.gains is not None:
                alignments = [plan.gains.written @ g for g in alignments]
        report = _report(plan, matched, results, fuser, said, forward)
        report = report if chosen is None else replace(report, tune=chosen.report)
        verdict = plan.verdict(report.moves, report.facts)
        notes = [*report.notes, *noted(verdict), *(() if chosen is None else chosen.notes)]
        say, worded = plan.request.say or str, unused.notes()
        notes = [note if note in worded else say(note) for note in notes]
        report = replace(report, verdict=verdict, notes=notes)
        report = finish(plan, stream, report, alignments, {} if chosen is None else chosen.files)
        return report if chosen is None else replace(report, tune=chosen.outcome)


def _report(
    plan: MergePlan,
    matched: Matched,
    results: Sequence[Sequence[UnitResult]],
    fuser: Fuser,
    said: Sequence[tuple[str, str]],
    forward: Json | None,
) -> MergeReport:
    """What is known of a merge once its tensors are written."""
    ours, mean = plan.matching.match == OURS, matched.mean
    read = [plan.target, *plan.sources]
    beside = [base for base in plan.bases if base is not None]
    moves, fusion = moves_of(read, results), fuser.described(len(plan.models))
    if fusion.weights is not None:  # of the models that are fused, in the order of what was read
        weight_of = dict(zip(map(id, plan.models), weights_of(plan.fusion, len(plan.models)), strict=True))
        fusion = replace(fusion, weights=[w for model in read if (w := weight_of[id(model)]) is not None])
    why = why_risen([*(matched.streams if ours else ()), mean or {}], "" if ours else plan.matching.match)
    return MergeReport(
        run=run_of("merge", read, results, beside),
        notes=run_notes([*fuser.every_note(said), *_of_gains(plan)], moves.risen(why)),
        moves=moves,
        gains=None if plan.gains is None else COMMON,
        fusion=fusion,
        align=plan.aligns,
        spaces=plan.spaces,
        layers=plan.request.layers,
        decided=plan.bearings.decision,
        vocabulary=plan.vocabulary or None,
        streams=matched.streams if ours else [],
        match=None if ours else Match(plan.matching.match, matched.streams),
        anchor=None if mean is None else "none",
        mean=mean,
        heads=plan.request.heads if plan.heads.apart else None,
        forward=forward,
        roles=parts_of(plan, (forward or {}).get("chosen")),
    )


def _of_gains(plan: MergePlan) -> list[str]:
    """That the first model is written with other gains as well, where streams were turned."""
    if plan.gains is None:
        return []
    first = plan.target.ref
    return [
        f"all models, {first} too, take on gains of norms that they have in common, which changes no function: "
        f"distances after alignment are between models with these, to which alignments lead, and not to {first} as "
        "it is stored"
    ]


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


def _matched(plan: MergePlan, stream: StreamWriter) -> tuple[MergePlan, Sequence[UnitSolver], Matched]:
    """The plan with the gains that its models are written with, what brings the units together, once all passes
    over whole models are done, and what these found."""
    matched = Matched()
    used: Sequence[UnitSolver] = plan.solvers
    if plan.matches:
        # every solver there is: a merge of models as they are stored does without
        from isomerge.merging.matched_models import match_models

        plan, used, matched = match_models(plan, stream)
    if not matched.streams and matched.mean is None:
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
    return plan, used, matched


def _gains(plan: MergePlan, stream: StreamWriter) -> CommonGains | None:
    """Where streams were turned: the gains that all models have in common, in which they are fused and written.

    Methods that run the aligned models are given them with the anchor's.
    """
    if plan.runs or plan.matching.match != OURS or plan.plan.selection.frame is None:
        return None
    # where streams are turned, which is rare where nothing is matched
    from isomerge.solve.pairs.written_gains import prepare_gains

    return prepare_gains(stream, plan.solvers)
