"""``isomerge apply``: replay a saved alignment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import OpeningOptions, OutputOptions, TellingOptions, UntieOptions


@grouped
def apply(
    patch: Annotated[Path, typer.Argument(help="An alignment file (alignment.safetensors).")],
    model: Annotated[str, typer.Argument(help="The model to move: a folder or hub id.")],
    out: o.Out,
    inverse: Annotated[
        bool, typer.Option("--inverse", help="Undo the alignment: back to the coordinates from before it.")
    ] = False,
    *,
    tie: UntieOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
    telling: TellingOptions,
) -> None:
    """Move MODEL by a saved alignment and write it: the same function in other weights."""
    import isomerge
    from isomerge.cli.console import Voice, tell_pushed, write_json
    from isomerge.cli.evidence import rounding_lines

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("applying") as observer:
        report = isomerge.apply(
            patch,
            model,
            out=out,
            inverse=inverse,
            untie=tie.untie,
            spec=opening.spec,
            allow_pickle=opening.allow_pickle,
            out_shard_size=writing.out_shard_size,
            dtype=writing.dtype,
            overwrite=writing.overwrite,
            push_to_hub=writing.push_to_hub,
            private=writing.private,
            observer=observer,
        )
    if telling.verbose:
        layers = report["distance"]["layers"].items()
        voice.table(
            "",
            ["moved by", "", "norm"],
            [[f"layer {n}", f"{d['after']:.6g}", f"{d['norm']:.6g}"] for n, d in layers],
        )
    for line in rounding_lines(report):
        voice.say(line)
    voice.say(f"Wrote {out}: moved by {report['distance']['after']:.6g} (norm {report['distance']['norm']:.6g}).")
    tell_pushed(voice, writing)
    write_json(telling.json, report)
