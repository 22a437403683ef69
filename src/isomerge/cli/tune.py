"""``isomerge tune``: the parameters of a recipe, searched for on a loss or on tasks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import (
    DryRunOptions,
    ExamplesOptions,
    OpeningOptions,
    OutputOptions,
    RunningOptions,
    TellingOptions,
    TuningOptions,
)

if TYPE_CHECKING:
    from isomerge.cli.console import Voice


@grouped
def tune(
    recipe: Annotated[
        str, typer.Argument(help="A recipe (YAML); {search: [LOW, HIGH]} or {choices: [A, B]} for a value.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write; must not exist or be empty.",
            rich_help_panel="What most runs need",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Labelled examples, or text for language models (as of isomerge merge); a share is held out.",
            rich_help_panel="What most runs need",
        ),
    ] = None,
    *,
    tuning: TuningOptions,
    examples: ExamplesOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
    running: RunningOptions,
) -> None:
    """Search for the parameters of a recipe on the loss of the merge or on tasks, and write the best merge.

    The models are aligned once. The same command goes on with a search that was killed.
    """
    from isomerge.cli.console import Voice, tell_lines, tell_pushed, write_json
    from isomerge.cli.dry_run import tell_tuning
    from isomerge.commands.tuning import planned_tune

    voice = Voice(telling.quiet, telling.verbose)
    how: dict[str, Any] = {"data": data, "tuning": tuning, "examples": examples, "opening": opening}
    how |= {"writing": writing, "running": running}
    if planning.dry_run:
        with planned_tune(recipe, out, **how) as plan:
            return tell_tuning(voice, telling.json, plan)
    with voice.progress("tuning") as observer, planned_tune(recipe, out, **how, observer=observer) as plan:
        decided = plan.merging.decided()
        report = plan.run()
        carried = plan.merging.plan.fusion.notes
    for note in carried:
        voice.warn(note)
    tell_lines(voice, decided)
    _tell(voice, report, out)
    tell_pushed(voice, writing)
    return write_json(telling.json, report)


def _tell(voice: Voice, report: dict[str, Any], out: Path) -> None:
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
    place = shlex.quote(str(out))
    voice.say(
        f"Wrote {out}: {report['method']} merge of {', '.join(report['models'])}, with tune.json and tune.png."
    )
    voice.say(f"isomerge merge {place}/isomerge_recipe.yml -o ANOTHER writes the same merge.")


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
