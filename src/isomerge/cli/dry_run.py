"""``--dry-run``: all checks, the plan and what it will cost; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from isomerge.cli.console import Voice, tell_verdict, warn_fixed
from isomerge.evidence.report.numerals import size_text
from isomerge.records import Json, Record

if TYPE_CHECKING:
    from isomerge.commands.measuring import Planned
    from isomerge.commands.tuning import Tuning
    from isomerge.merging.merge_plan import MergePlan
    from isomerge.models.recognised import Model
    from isomerge.models.unit_plan import Plan
    from isomerge.run.alignment_runs import AlignPlan
    from isomerge.run.run_verdict import RunVerdict
    from isomerge.solve.match_options import Matching


def tell_merge(voice: Voice, plan: MergePlan) -> Json:
    """Print units, spaces, memory and time of a merge, which was checked when it was planned; the rest is checked
    here."""
    cost = plan.cost()
    looked = [*_looked_at(plan.matching), *plan.request.looks] if plan.matches else plan.request.looks
    voice.say(*plan.decided())
    more = {"decided": plan.bearings.decision, **({"vocabulary": plan.vocabulary} if plan.vocabulary else {})}
    return _tell(voice, plan.models, plan.plan, cost, looked, plan.verdict(), moved=plan.matches, more=more)


def tell_tuning(voice: Voice, planned: Tuning) -> Json:
    """The same of a search: what is searched for, and what its trials take as far as shapes tell."""
    plan, tuner = planned.merging, planned.tuner
    recipe, data = tuner.recipe, tuner.data
    things = "documents" if tuner.how.objective == "tasks" else "examples"
    voice.say(
        f"{tuner.how.trials} trials ({tuner.how.sampler}) of {', '.join(d.name for d in recipe.dimensions)}; "
        f"searched on {len(data.search)} {things}, judged on {len(data.judge)}."
    )
    cost = planned.cost()
    looked = [*_looked_at(plan.matching), f"{tuner.how.trials} times method {plan.fusion.method.name}"]
    more = {
        "searched": [d.document() for d in recipe.dimensions],
        "trials": tuner.how.trials,
        "examples": {"search": len(data.search), "judge": len(data.judge)},
    }
    return _tell(voice, plan.models, plan.plan, cost, looked, plan.verdict(), moved=plan.matches, more=more)


def tell_alignment(voice: Voice, plan: AlignPlan) -> Json:
    """The same of an alignment."""
    cost = plan.cost()
    models, looked = [plan.solver.source, plan.solver.anchor], _looked_at(plan.matching)
    return _tell(voice, models, plan.solver.plan, cost, looked, plan.verdict(), moved=plan.matches)


def tell_cost(voice: Voice, planned: Planned) -> Json:
    """The memory and time of a command that runs models and writes none, which was checked when it was planned; the
    report of that."""
    cost, examples = planned.cost, planned.examples
    voice.say(*(f"Note: {note}." for note in planned.notes))
    read = f"{len(examples)} examples; " if examples is not None else ""
    voice.say(
        f"{read}about {size_text(cost.memory)} of memory, {cost.seconds:.0f} s on one core. Nothing was written."
    )
    tell_verdict(voice, planned.verdict)
    return {
        "command": "dry-run",
        "models": [model.ref for model in planned.models],
        "examples": None if examples is None else len(examples),
        "estimate": cost,
        "notes": planned.notes,
        **({} if planned.verdict is None else {"verdict": planned.verdict}),
    }


A = TypeVar("A", bound=Record)


def tell_about(
    voice: Voice,
    models: Sequence[str],
    about: A,
    notes: Sequence[str],
    tell: Callable[[Voice, A, Sequence[str]], None],
) -> Json:
    """What a plan says of its result, as a run ``tell``s it of what it wrote; the report."""
    tell(voice, about, notes)
    voice.say("Nothing was written.")
    return {"command": "dry-run", "models": models, **about.document(), "notes": notes}


def _looked_at(matching: Matching) -> list[str]:
    """What a match takes time for that shapes do not tell."""
    from isomerge.solve.match_options import OURS

    looked = [k for k in ("data", "stats", "search", "learn") if getattr(matching, k)]
    return [*looked, f"match {matching.match}"] if matching.match != OURS else looked


def _tell(
    voice: Voice,
    models: Sequence[Model],
    plan: Plan,
    cost: Mapping[str, float],
    left_out: Sequence[str],
    verdict: RunVerdict | None,
    *,
    moved: bool,
    more: Json | None = None,
) -> Json:
    """The plan in words, and as JSON tells it."""
    from isomerge.evidence.report.spaces import plain_names
    from isomerge.symmetry.fixed import fixed_parts

    fixed = fixed_parts(models[0].spec, models[0].matches.values()) if moved else []
    warn_fixed(voice, fixed)
    selection, units, matched = plan.selection, len(plan.units), sum(map(plan.is_matched, plan.units))
    streams = selection.frame.stream_groups if selection.frame is not None else {}
    names = plain_names(selection.spec)
    sweeps = "in sweeps over both models before anything is written"
    voice.say(*(f"Note: {note}." for note in selection.notes))
    voice.say(*(f"Residual stream {name}: {group}, {sweeps}." for name, group in streams.items()))
    if left_out:
        voice.say(f"Not estimated, and not in the time below: what {', '.join(left_out)} will take.")
    moving = ", ".join(dict.fromkeys(names[name] for name in selection.spec.spaces))
    voice.say(
        f"{units} parts in turn, {matched} of them aligned{moving and f' ({moving})'}; about "
        f"{size_text(cost['memory'])} of memory, {_time_text(cost)} on one core. Nothing was written."
    )
    tell_verdict(voice, verdict)
    return {
        "command": "dry-run",
        "models": [model.ref for model in models],
        "units": units,
        "matched": matched,
        "streams": streams,
        "notes": selection.notes,
        "verdict": verdict,
        "fixed": fixed,
        "estimate": cost,
        "not_estimated": left_out,
        **(more or {}),
    }


def _time_text(cost: Mapping[str, float]) -> str:
    """The time; from and to where it depends on how close the models are."""
    if cost["seconds"] < max(2 * cost["seconds_related"], 1):
        return f"{cost['seconds']:.0f} s"
    return (
        f"{cost['seconds_related']:.0f} s (fine-tunes of one model, twins) to {cost['seconds']:.0f} s (unrelated)"
    )
