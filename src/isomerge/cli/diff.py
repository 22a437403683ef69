"""``isomerge diff``: how far apart two models are, as stored and modulo symmetry."""

from __future__ import annotations

from typing import Annotated

import typer

from isomerge.cli import options as o


def diff(
    a: Annotated[str, typer.Argument(help="A model: a folder or hub id.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    spaces: o.Spaces = None,
    layers: o.Layers = None,
    spec: o.SpecFile = None,
    allow_pickle: o.Pickle = False,
    json: o.Json = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Compare two models: raw distance, distance modulo symmetry, and what that means."""
    import isomerge
    from isomerge.cli.console import Voice, distance_table, stream_table, warn_fixed, write_json

    voice = Voice(quiet, verbose)
    with voice.progress("comparing") as observer:
        report = isomerge.distance(
            a, b, spaces=spaces, layers=layers, spec=spec, allow_pickle=allow_pickle, observer=observer
        )
    warn_fixed(voice, report.get("fixed", []))
    stream_table(voice, report)
    distance_table(voice, report["distance"])
    relative = report["relative"]
    turned = any(found["groups"] for found in report["streams"])
    modulo = "symmetry and basis of the stream" if turned else "block-local symmetry"
    voice.say(
        f"Tensors that symmetry moves: {relative['before']:.3g} of their norm apart as stored, "
        f"{relative['after']:.3g} modulo {modulo} (1.41 is uncorrelated)."
    )
    prints = report["fingerprints"]
    if prints["score"] is not None:
        voice.say(
            f"Fingerprints: {prints['verdict']} (score {prints['score']:.2f}; 1 is one function, 0 independent)."
        )
    voice.say(f"Verdict: {report['verdict']}.")
    write_json(json, report)
