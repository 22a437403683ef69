"""``isomerge task-mask`` and ``isomerge restore-task``: a light file for each task beside one merged model, and the
task's own model back from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import FileOptions, FolderOptions, MaskOptions, OpeningOptions, ReportOptions

Merged = Annotated[str, typer.Argument(help="The merged model: a folder or hub id.")]
Base = Annotated[str, typer.Argument(help="The base that it was merged around.")]


@grouped
def task_mask(
    merged: Merged,
    base: Base,
    task: Annotated[
        str, typer.Argument(help="The model of the task; after an aligned merge, aligned onto the base as well.")
    ],
    out: o.OutFile,
    *,
    masking: MaskOptions,
    opening: OpeningOptions,
    writing: FileOptions,
    telling: ReportOptions,
) -> None:
    """Write the mask (one bit per weight) by which restore-task gives TASK back from MERGED and BASE.

    EMR (Huang et al. 2024) and TALL masks (Wang et al. 2024).
    """
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(telling.quiet)
    report = isomerge.task_mask(
        merged,
        base,
        task,
        out=out,
        kind=masking.kind,
        tall_lambda=masking.tall_lambda,
        spec=opening.spec,
        allow_pickle=opening.allow_pickle,
        overwrite=writing.overwrite,
    )
    for note in report["notes"]:
        voice.warn(note)
    voice.say(
        f"Wrote {out}: {report['share']:.1%} of the weights in the mask. The restored model is "
        f"{report['error']:.1%} of the task vector's length from {task} (the base: 100 %)."
    )
    write_json(telling.json, report)


@grouped
def restore_task(
    merged: Merged,
    base: Base,
    mask: Annotated[Path, typer.Argument(help="The file that task-mask wrote.")],
    out: o.Out,
    *,
    opening: OpeningOptions,
    writing: FolderOptions,
    telling: ReportOptions,
) -> None:
    """Write the model of one task: BASE plus what MASK lets through of MERGED, with MERGED's config and files."""
    import isomerge
    from isomerge.cli.console import Voice, write_json

    report = isomerge.restore_task(
        merged,
        base,
        mask,
        out=out,
        spec=opening.spec,
        allow_pickle=opening.allow_pickle,
        overwrite=writing.overwrite,
    )
    voice = Voice(telling.quiet)
    for note in report["notes"]:
        voice.warn(note)
    voice.say(f"Wrote {out}: the task of {mask}, from {merged} and {base}.")
    write_json(telling.json, report)
