"""``isomerge widen``: the same function in a larger model of its architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import DryRunOptions, OpeningOptions, OutputOptions, TellingOptions, WideningOptions

if TYPE_CHECKING:
    from isomerge.cli.console import Voice


@grouped
def widen(
    model: Annotated[str, typer.Argument(help="The model to widen: a folder or hub id.")],
    out: o.Out,
    *,
    widening: WideningOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
) -> None:
    """Write MODEL as a wider or deeper model of its architecture that is the same function: what is added is zero.

    It is first tried on a tiny random model of the class, whose outputs must stay. The result can be aligned,
    merged and trained with models of its new sizes.
    """
    from isomerge.cli.console import Voice, tell_pushed, write_json
    from isomerge.commands.widening import planned_widen
    from isomerge.evidence.report.notebook import Report

    voice = Voice(telling.quiet, telling.verbose)
    how: dict[str, Any] = {"widening": widening, "opening": opening, "writing": writing}
    if planning.dry_run:
        with planned_widen(model, out, **how) as plan:
            plan.check()
            document = plan.document()
        _tell(voice, model, document)
        voice.say("Nothing was written.")
        return write_json(telling.json, {"command": "dry-run", "models": [model], **document})
    with voice.progress("widening") as observer, planned_widen(model, out, **how, observer=observer) as plan:
        report = Report(plan.run())
    _tell(voice, model, report)
    voice.say(f"Wrote {out}: the function of {model}, in {report['parameters']['after']:,} parameters.")
    tell_pushed(voice, writing)
    return write_json(telling.json, report)


def _tell(voice: Voice, model: str, report: dict[str, Any]) -> None:
    rows = [[key, str(size["before"]), str(size["after"])] for key, size in report["sizes"].items()]
    voice.table("", ["size", "before", "after"], rows)
    ways = {
        "zeros": "new coordinates are zero",
        "means": "new coordinates are the mean of the others, which norms take away",
        "copies": "all coordinates are repeated",
    }
    for name, stream in report["streams"].items():
        voice.say(
            f"Residual stream {name}: {ways[stream['how']]}; what it carries is multiplied by "
            f"{stream['factor']:.4g}."
        )
    if report["added_layers"]:
        voice.say(f"Layers that are added, and write nothing: {report['added_layers']}.")
    for note in report["notes"]:
        voice.say(f"Note: {note}.")
    proof = report["proof"]
    voice.say(
        f"Proven on a tiny random {proof['class']}: widened alike, its outputs change by {proof['error']:.1e}."
    )
