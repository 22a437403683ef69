"""What the command line says of models that are made larger: ``isomerge widen`` and ``transplant-tokenizer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.cli.console import Voice
from isomerge.cli.dry_run import tell_about
from isomerge.options.requests import widening as asked_for
from isomerge.records import Json

if TYPE_CHECKING:
    from isomerge.commands.transplanting import Tokens
    from isomerge.commands.widening import Wider
    from isomerge.run.view_writing import ViewReport

WAYS = {
    "own": "both have: their vectors are kept",
    "omp": "sums of vectors, by orthogonal matching pursuit",
    "nearest": "means of the nearest",
    "subword": "means of their pieces",
    "mean": "the mean of all",
    "zero": "zeros",
}


def plan_widen(voice: Voice, asked: asked_for.Widen) -> Json:
    """What becomes of the model, proven on a tiny one."""
    from isomerge.commands.widening import planned_widen

    with planned_widen(asked) as plan:
        plan.output.check([plan.wide])
        return tell_about(voice, [asked.model], plan.about, plan.notes, _tell_widened)


def tell_widen(voice: Voice, asked: asked_for.Widen, report: ViewReport[Wider]) -> None:
    """What became of the model."""
    _tell_widened(voice, report.about, report.notes)
    voice.say(f"Wrote {asked.out}: the function of {asked.model}, in {report.about.parameters.after:,} parameters.")


def _tell_widened(voice: Voice, about: Wider, notes: Sequence[str]) -> None:
    rows = [[key, str(size.before), str(size.after)] for key, size in about.sizes.items()]
    voice.table(["size", "before", "after"], rows)
    ways = {
        "zeros": "new coordinates are zero",
        "means": "new coordinates are the mean of the others, which norms take away",
        "copies": "all coordinates are repeated",
    }
    for name, stream in about.streams.items():
        voice.say(
            f"Residual stream {name}: {ways[stream.how]}; what it carries is multiplied by {stream.factor:.4g}."
        )
    if about.added_layers:
        voice.say(f"Layers that are added, and write nothing: {about.added_layers}.")
    voice.say(*(f"Note: {note}." for note in notes))
    proof = about.proof
    voice.say(f"Proven on a tiny random {proof.module}: widened alike, its outputs change by {proof.error:.1e}.")


def plan_transplant_tokenizer(voice: Voice, asked: asked_for.TransplantTokenizer) -> Json:
    """What becomes of the tokens."""
    from isomerge.commands.transplanting import planned_transplant

    with planned_transplant(asked) as plan:
        plan.output.check([plan.made])
        return tell_about(voice, [asked.model], plan.about, (), _tell_tokens)


def tell_transplant_tokenizer(
    voice: Voice, asked: asked_for.TransplantTokenizer, report: ViewReport[Tokens]
) -> None:
    """What became of the tokens."""
    _tell_tokens(voice, report.about, ())
    voice.say(f"Wrote {asked.out}: {asked.model} with the tokenizer of {asked.tokenizer}.")


def _tell_tokens(voice: Voice, about: Tokens, notes: Sequence[str]) -> None:
    rows = [[WAYS.get(how, how), str(number)] for how, number in about.filled.items() if number]
    voice.table(["tokens", "number"], rows)
    voice.say(f"Rows: {about.rows.before} before, {about.rows.after} after.")
    if (loss := about.loss) is not None:
        each = (("before", loss.before), ("after", loss.after))
        rows = [[when, f"{text.nats_per_byte:.4g}", str(text.tokens)] for when, text in each]
        voice.say("")
        voice.table([f"{loss.texts} texts, {loss.bytes} bytes", "loss (nats per byte)", "tokens"], rows)
