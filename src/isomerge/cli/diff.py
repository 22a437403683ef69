"""``isomerge diff``: how far apart two models are, as stored and modulo symmetry."""

from __future__ import annotations

from typing import Annotated

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import LayersOptions, OpeningOptions, TellingOptions


@grouped
def diff(
    a: Annotated[str, typer.Argument(help="A model: a folder or hub id.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    *,
    moving: LayersOptions,
    opening: OpeningOptions,
    telling: TellingOptions,
) -> None:
    """Compare two models: raw distance, distance modulo symmetry, and what that means."""
    import isomerge
    from isomerge.cli.console import Voice, distance_table, stream_table, tell_verdict, warn_fixed, write_json

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("comparing") as observer:
        report = isomerge.diff(
            a,
            b,
            spaces=moving.spaces,
            layers=moving.layers,
            spec=opening.spec,
            allow_pickle=opening.allow_pickle,
            observer=observer,
        )
    warn_fixed(voice, report.get("fixed", []))
    stream_table(voice, report)
    distance_table(voice, report["distance"])
    relative = report["relative"]
    turned = any(stream["groups"] for stream in report["streams"])
    modulo = "symmetry and basis of the stream" if turned else "block-local symmetry"
    if relative["after"] is not None:
        voice.say(
            f"Tensors that symmetry moves: {relative['before']:.3g} of their norm apart as stored, "
            f"{relative['after']:.3g} modulo {modulo} (1.41 is uncorrelated)."
        )
    prints = report["fingerprints"]
    if prints["score"] is not None:
        voice.say(
            f"Fingerprints: {prints['verdict']} (score {prints['score']:.2f}; 1 is one function, 0 independent)."
        )
    tell_verdict(voice, report["verdict"])
    write_json(telling.json, report)
