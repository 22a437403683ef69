"""``isomerge tune``: the parameters of a recipe, searched for on a loss or on tasks."""

from __future__ import annotations

import shlex
from typing import Any

from isomerge.cli.console import Voice, tell_lines, tell_pushed
from isomerge.options.requests import tuning as asked_for


def plan_tune(voice: Voice, asked: asked_for.Tune) -> dict[str, Any]:
    """What is searched for, and what it will take."""
    from isomerge.cli.dry_run import tell_tuning
    from isomerge.commands.tuning import planned_tune

    with planned_tune(asked) as plan:
        return tell_tuning(voice, plan)


def run_tune(voice: Voice, asked: asked_for.Tune) -> dict[str, Any]:
    """The search, and the best merge, written; what was decided, told."""
    from isomerge.commands.tuning import planned_tune

    with voice.progress(asked.progress) as observer, planned_tune(asked, observer) as plan:
        decided = plan.merging.decided()
        report = plan.run()
        carried = () if plan.tuner.chosen is None else plan.tuner.chosen.notes
    for note in carried:
        voice.warn(note)
    tell_lines(voice, decided)
    return report


def tell_tune(voice: Voice, asked: asked_for.Tune, report: dict[str, Any]) -> None:
    """What was found, and what it is worth."""
    tune, seconds = report["tune"], report["tune"]["seconds"]
    rows = [
        [name, _value(tune["start"]["values"][name]), _value(value)]
        for name, value in tune["best"]["values"].items()
    ]
    voice.table("", ["parameter", "the recipe's own", "best"], rows)
    voice.say("")
    rows = [_figures(name, tune[key]) for name, key in (("best", "best"), ("the recipe's own", "start"))]
    rows += [_figures(row["model"], row) for row in tune["models"]]
    counts, tasks = tune["data"], tune["objective"] == "tasks"
    things = "documents" if tasks else "examples"
    sizes = [
        f"{counts[part]['examples']} {things} {word}"
        for part, word in (("search", "searched on"), ("judge", "held out"))
    ]
    if tune["search_unit"] != tune["unit"]:
        sizes[0] += f" ({tune['search_unit']})"
    head = [tune["unit"], *sizes, *tune["best"]["judge"]["tasks"]] if tasks else []
    voice.table("", head or [f"loss ({tune['unit']})", *sizes, "accuracy"], rows)
    made = len(tune["trials"])
    voice.say(
        f"\n{made} trials of {seconds['trial']:.2g} s each, aligned once"
        f" ({tune['reused']['aligned_units']} units in {seconds['aligning']:.2g} s)."
    )
    for note in tune["notes"]:
        if note.lower() not in tune["sentence"].lower():
            voice.warn(note)
    voice.say(tune["sentence"])
    place = shlex.quote(str(asked.out))
    voice.say(
        f"Wrote {asked.out}: {report['method']} merge of {', '.join(report['models'])}, with tune.json "
        "and tune.png."
    )
    voice.say(f"isomerge merge {place}/isomerge_recipe.yml -o ANOTHER writes the same merge.")
    tell_pushed(voice, asked.writing)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _figures(name: str, row: dict[str, Any]) -> list[str]:
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
