"""What the command line says of models that are made larger: ``isomerge widen`` and ``transplant-tokenizer``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomerge.cli.console import Voice, tell_pushed
from isomerge.cli.dry_run import tell_document
from isomerge.options.requests import widening as asked_for

WAYS = {
    "own": "both have: their vectors are kept",
    "omp": "sums of vectors, by orthogonal matching pursuit",
    "nearest": "means of the nearest",
    "subword": "means of their pieces",
    "mean": "the mean of all",
    "zero": "zeros",
}


def plan_widen(voice: Voice, asked: asked_for.Widen) -> dict[str, Any]:
    """What becomes of the model, proven on a tiny one."""
    from isomerge.commands.widening import planned_widen

    with planned_widen(asked) as plan:
        plan.check()
        return tell_document(voice, [asked.model], plan.document(), _tell_widened)


def tell_widen(voice: Voice, asked: asked_for.Widen, report: dict[str, Any]) -> None:
    """What became of the model."""
    _tell_widened(voice, report)
    voice.say(f"Wrote {asked.out}: the function of {asked.model}, in {report['parameters']['after']:,} parameters.")
    tell_pushed(voice, asked.writing)


def _tell_widened(voice: Voice, report: Mapping[str, Any]) -> None:
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


def plan_transplant_tokenizer(voice: Voice, asked: asked_for.TransplantTokenizer) -> dict[str, Any]:
    """What becomes of the tokens."""
    from isomerge.commands.transplanting import planned_transplant

    with planned_transplant(asked) as plan:
        plan.check()
        return tell_document(voice, [asked.model], plan.document(), _tell_tokens)


def tell_transplant_tokenizer(voice: Voice, asked: asked_for.TransplantTokenizer, report: dict[str, Any]) -> None:
    """What became of the tokens."""
    _tell_tokens(voice, report)
    voice.say(f"Wrote {asked.out}: {asked.model} with the tokenizer of {asked.tokenizer}.")
    tell_pushed(voice, asked.writing)


def _tell_tokens(voice: Voice, report: Mapping[str, Any]) -> None:
    rows = [[WAYS.get(how, how), str(number)] for how, number in report["filled"].items() if number]
    voice.table("", ["tokens", "number"], rows)
    voice.say(f"Rows: {report['rows']['before']} before, {report['rows']['after']} after.")
    if loss := report.get("loss"):
        rows = [
            [when, f"{loss[when]['nats_per_byte']:.4g}", str(loss[when]["tokens"])] for when in ("before", "after")
        ]
        voice.say("")
        voice.table("", [f"{loss['texts']} texts, {loss['bytes']} bytes", "loss (nats per byte)", "tokens"], rows)
