"""``isomerge relational``: a model that sees Gram numbers only, with the function of an ordinary one."""

from __future__ import annotations

from typing import Annotated

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import DryRunOptions, FolderOptions, TellingOptions
from isomerge.options.relational import RelationalOptions


@grouped
def relational(
    model: Annotated[str, typer.Argument(help="A pre-norm model: a folder or hub id.")],
    out: o.Out,
    *,
    shape: RelationalOptions,
    writing: FolderOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
) -> None:
    """Write MODEL in relational form: the same function of Gram numbers, which no rotation of its stream changes.

    isomerge.relational.load reads it.
    """
    from isomerge.cli.console import Voice, write_json
    from isomerge.commands.relating import planned_relational

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("relational form"), planned_relational(model, out, shape, writing) as planned:
        report = planned.report if planning.dry_run else planned.run()
    said = (
        f"{report['layers']} layers, {report['heads']} heads, {report['anchors']} anchors, "
        f"{report['parameters']} parameters"
    )
    voice.say(f"{said}. Nothing was written." if planning.dry_run else f"Wrote {out}: {said}.")
    if not planning.dry_run:
        voice.say(f'isomerge.relational.load("{out}") reads it.')
    write_json(telling.json, report)
