"""``isomerge surgery``: what a task's head reads in a merged model, corrected; written as an adapter on it."""

from __future__ import annotations

from typing import Annotated

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import ExamplesOptions, FolderOptions, OpeningOptions, SurgeryOptions, TellingOptions


@grouped
def surgery(
    merged: Annotated[str, typer.Argument(help="The merged model: a folder or hub id.")],
    task: Annotated[
        str, typer.Argument(help="The task's own model; after an aligned merge, aligned in the same way.")
    ],
    data: Annotated[str, typer.Option("--data", help="Examples of the task, no labels needed (as of stats).")],
    out: o.Out,
    *,
    operating: SurgeryOptions,
    examples: ExamplesOptions,
    opening: OpeningOptions,
    writing: FolderOptions,
    telling: TellingOptions,
) -> None:
    """Correct what the head of TASK reads in MERGED, and write the corrected head as an adapter: MERGED+OUT is the
    model of the task.

    Representation surgery (Yang et al. 2024), in the form that is part of an ordinary checkpoint.
    """
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("surgery") as observer:
        report = isomerge.surgery(
            merged,
            task,
            data=data,
            out=out,
            **operating.given(),
            **examples.given(),
            spec=opening.spec,
            allow_pickle=opening.allow_pickle,
            overwrite=writing.overwrite,
            observer=observer,
        )
    for note in report["notes"]:
        voice.warn(note)
    agreement = report["agreement"]
    compared = "" if agreement is None else (
        f"; of its predictions {100 * agreement['before']:.1f} % and {100 * agreement['after']:.1f} % are {task}'s"
    )  # fmt: skip
    voice.say(
        f"Wrote {out}, an adapter for {merged}. On held-out examples what {report['head']} reads is "
        f"{report['before']:.1%} from {task}'s without it, and {report['after']:.1%} with it{compared}."
    )
    write_json(telling.json, report)
