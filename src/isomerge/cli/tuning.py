"""``isomerge tune``: the parameters of a recipe, searched for on a loss or on tasks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from isomerge.cli.console import Voice
from isomerge.options.requests import tuning as asked_for
from isomerge.records import Json

if TYPE_CHECKING:
    from isomerge.merging.finishing import MergeReport
    from isomerge.tuning.tuner import Tuned


def plan_tune(voice: Voice, asked: asked_for.Tune) -> Json:
    """What is searched for, and what it will take."""
    from isomerge.cli.dry_run import tell_tuning
    from isomerge.commands.tuning import planned_tune

    with planned_tune(asked) as plan:
        return tell_tuning(voice, plan)


def run_tune(voice: Voice, asked: asked_for.Tune) -> MergeReport:
    """The search, and the best merge, written; what was decided, told."""
    from isomerge.commands.tuning import planned_tune

    with voice.progress(asked.progress) as observer, planned_tune(asked, observer) as plan:
        decided = plan.merging.decided()
        report = plan.run()
        carried = plan.tuner.fusion(_tuned(report).best["values"]).notes
    voice.warn(*carried)
    voice.say(*decided)
    return report


def _tuned(report: MergeReport) -> Tuned:
    from isomerge.tuning.tuner import Tuned

    assert isinstance(report.tune, Tuned)
    return report.tune


def tell_tune(voice: Voice, asked: asked_for.Tune, report: MergeReport) -> None:
    """What was found, and what it is worth."""
    tune = _tuned(report)
    start, best = tune.start["values"], tune.best["values"]
    rows = [[name, _value(start[name]), _value(value)] for name, value in best.items()]
    voice.table(["parameter", "the recipe's own", "best"], rows)
    voice.say("")
    rows = [_figures("best", tune.best), _figures("the recipe's own", tune.start)]
    rows += [_figures(row["model"], row) for row in tune.models]
    counts, tasks = tune.data, tune.objective == "tasks"
    things = "documents" if tasks else "examples"
    sizes = [
        f"{counts[part].examples} {things} {word}"
        for part, word in (("search", "searched on"), ("judge", "held out"))
    ]
    if tune.search_unit != tune.unit:
        sizes[0] += f" ({tune.search_unit})"
    head = [tune.unit, *sizes, *tune.best["judge"]["tasks"]] if tasks else []
    voice.table(head or [f"loss ({tune.unit})", *sizes, "accuracy"], rows)
    if (clock := tune.clock) is not None:
        voice.say(
            f"\n{len(tune.trials)} trials of {clock.seconds['trial']:.2g} s each, aligned once"
            f" ({clock.reused['aligned_units']} units in {clock.seconds['aligning']:.2g} s)."
        )
    voice.warn(*(note for note in tune.notes if note.lower() not in tune.sentence.lower()))
    voice.say(tune.sentence)
    place = shlex.quote(str(asked.out))
    voice.say(
        f"Wrote {asked.out}: {report.fusion.method} merge of {', '.join(report.run.models)}, with tune.json "
        "and tune.png."
    )
    voice.say(f"isomerge merge {place}/isomerge_recipe.yml -o ANOTHER writes the same merge.")


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _figures(name: str, row: Json) -> list[str]:
    """A row of the table of losses, or of scores."""
    if (judge := row["judge"]) is None:
        return [name, "-", "-", "-"]
    if "score" in judge:
        return [
            name,
            f"{row['search']:.4g}",
            f"{judge['score']:.4g}",
            *(f"{x:.4g}" for x in judge["tasks"].values()),
        ]
    accuracy = judge["accuracy"]
    share = "" if accuracy is None else f"{100 * accuracy:.1f} %"
    return [name, f"{row['search']:.4g}", f"{judge['loss']:.4g}", share]
