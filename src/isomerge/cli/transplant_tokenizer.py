"""``isomerge transplant-tokenizer``: a model with the tokenizer of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import DryRunOptions, OpeningOptions, OutputOptions, TellingOptions, TransplantOptions

if TYPE_CHECKING:
    from isomerge.cli.console import Voice

WAYS = {
    "own": "both have: their vectors are kept",
    "omp": "sums of vectors, by orthogonal matching pursuit",
    "nearest": "means of the nearest",
    "subword": "means of their pieces",
    "mean": "the mean of all",
    "zero": "zeros",
}


@grouped
def transplant_tokenizer(
    model: Annotated[str, typer.Argument(help="The model that gets another tokenizer: a folder or hub id.")],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="Whose: a model, or a folder with a tokenizer alone.")
    ],
    out: o.Out,
    *,
    transplant: TransplantOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
) -> None:
    """Write MODEL with another tokenizer: embeddings, head, config and tokenizer files fit the new tokens.

    What both tokenizers have keeps its vector, also where they write it differently; train the others on.
    """
    from isomerge.cli.console import Voice, tell_pushed, write_json
    from isomerge.commands.transplanting import planned_transplant
    from isomerge.evidence.report.notebook import Report

    voice = Voice(telling.quiet, telling.verbose)
    how: dict[str, Any] = {"transplant": transplant, "opening": opening, "writing": writing}
    if planning.dry_run:
        with planned_transplant(model, tokenizer, out, **how) as plan:
            plan.check()
            document = plan.document()
        _tell(voice, document)
        voice.say("Nothing was written.")
        return write_json(telling.json, {"command": "dry-run", "models": [model], **document})
    with (
        voice.progress("transplanting") as observer,
        planned_transplant(model, tokenizer, out, **how, observer=observer) as plan,
    ):
        report = Report(plan.run())
    _tell(voice, report)
    voice.say(f"Wrote {out}: {model} with the tokenizer of {tokenizer}.")
    tell_pushed(voice, writing)
    return write_json(telling.json, report)


def _tell(voice: Voice, report: dict[str, Any]) -> None:
    rows = [[WAYS.get(how, how), str(number)] for how, number in report["filled"].items() if number]
    voice.table("", ["tokens", "number"], rows)
    voice.say(f"Rows: {report['rows']['before']} before, {report['rows']['after']} after.")
    if loss := report.get("loss"):
        rows = [
            [when, f"{loss[when]['nats_per_byte']:.4g}", str(loss[when]["tokens"])] for when in ("before", "after")
        ]
        voice.say("")
        voice.table("", [f"{loss['texts']} texts, {loss['bytes']} bytes", "loss (nats per byte)", "tokens"], rows)
