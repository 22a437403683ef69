"""``isomerge canon``: the one set of weights that stands for all disguises of a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import DressingOptions, OpeningOptions, OutputOptions, TellingOptions, UntieOptions


@grouped
def canon(
    model: Annotated[str, typer.Argument(help="The model: a folder or hub id.")],
    out: o.Out,
    *,
    tie: UntieOptions,
    dressing: DressingOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
    telling: TellingOptions,
) -> None:
    """Write MODEL in its canonical form: the same function, and the same weights whatever symmetries disguised it.

    It says how clear every choice was: where a gap is small, rounding may choose otherwise in a twin.
    """
    import isomerge
    from isomerge.cli.console import Voice, tell_pushed, warn_fixed, write_json
    from isomerge.cli.evidence import rounding_lines

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("canonical form") as observer:
        _, report = isomerge.canon(
            model,
            out=out,
            untie=tie.untie,
            **dressing.given(),
            spec=opening.spec,
            allow_pickle=opening.allow_pickle,
            out_shard_size=writing.out_shard_size,
            dtype=writing.dtype,
            overwrite=writing.overwrite,
            push_to_hub=writing.push_to_hub,
            private=writing.private,
            observer=observer,
        )
    for line in rounding_lines(report):
        voice.say(line)
    degeneracy = report["degeneracy"]
    warn_fixed(voice, report["fixed"])
    for note in report["notes"]:
        voice.say(f"note: {note}")
    voice.table(
        "", ["least clear", "choice of", "gap", "would move the weights by"], [_row(g) for g in degeneracy["gaps"]]
    )
    if telling.verbose and degeneracy["ambiguous"]:
        voice.table("", ["ambiguous", "choice of", "gap", "moves"], [_row(g) for g in degeneracy["ambiguous"]])
    if degeneracy["dead"]:
        voice.say(
            f"{len(degeneracy['dead'])} blocks have no balanced point ({degeneracy['dead'][0]}): they are dead or "
            "rank-deficient, and stay in the gauge that they have."
        )
    unique = (
        "is the same for every disguise"
        if degeneracy["unique"]
        else "may differ between disguises in what is named above"
    )
    voice.say(f"Wrote {out}: the canonical form, which {unique}.")
    if "activations" in report:
        activations = report["activations"]
        voice.say(
            f"Wrote {activations['file']}: {len(activations['layers'])} layers on "
            f"{activations['examples']} examples."
        )
    tell_pushed(voice, writing)
    write_json(telling.json, report)


def _row(gap: dict[str, Any]) -> list[str]:
    return [gap["element"], gap["kind"], f"{gap['gap']:.1e}", f"{100 * gap['moves']:.2g} %"]
