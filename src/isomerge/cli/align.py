"""``isomerge align``: the same function in other weights, closest to an anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import (
    DryRunOptions,
    MatchingOptions,
    OpeningOptions,
    OutputOptions,
    RunningOptions,
    SpacesOptions,
    TellingOptions,
)
from isomerge.options.fusing import AUTO


@grouped
def align(
    source: Annotated[str, typer.Argument(help="The model to move: a folder or hub id.")],
    onto: Annotated[str, typer.Option("--onto", help="The anchor: the model to come close to.")],
    out: o.Out,
    align: Annotated[
        bool,
        typer.Option(
            "--align",
            help="Match also what is aligned already, as fine-tunes of one base are; by default it is left as "
            "it is.",
        ),
    ] = False,
    *,
    moving: SpacesOptions,
    save_alignment: Annotated[
        Path | None, typer.Option(help="Also save what was applied, to replay it with apply.")
    ] = None,
    opening: OpeningOptions,
    writing: OutputOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
    running: RunningOptions,
    matching: MatchingOptions,
) -> None:
    """Move SOURCE along its symmetry orbit to the point closest to the anchor, and write it."""
    from isomerge.cli.console import (
        Voice,
        distance_table,
        stream_table,
        tell_files,
        tell_pushed,
        tell_verdict,
        warn_fixed,
        write_json,
    )
    from isomerge.cli.dry_run import tell_alignment
    from isomerge.cli.evidence import evidence_lines, rounding_lines
    from isomerge.commands.aligning import planned_align
    from isomerge.evidence.report.notebook import Report
    from isomerge.symmetry.patch_file import check_patch_file

    voice = Voice(telling.quiet, telling.verbose)
    if save_alignment is not None:
        check_patch_file(save_alignment, f"--save-alignment {save_alignment}")
    how: dict[str, Any] = {"align": align or AUTO, "moving": moving, "matching": matching}
    how |= {"opening": opening, "writing": writing, "running": running}
    if planning.dry_run:
        with planned_align(source, onto, out, **how) as plan:
            tell_alignment(voice, telling.json, plan)
        return tell_files(voice, matching)
    with voice.progress("aligning") as observer, planned_align(source, onto, out, **how, observer=observer) as plan:
        alignment, outcome = plan.run()
        report = Report(outcome)
    if save_alignment is not None:
        alignment.save(save_alignment)
    tell_files(voice, matching)
    warn_fixed(voice, report["fixed"])
    stream_table(voice, report)
    distance_table(voice, report["distance"])
    if report["dead_blocks"]:
        voice.warn(
            f"{len(report['dead_blocks'])} blocks are rank-deficient and were not balanced: "
            f"{', '.join(report['dead_blocks'][:4])}"
        )
    for line in (*rounding_lines(report), *evidence_lines(report)):
        voice.say(line)
    tell_verdict(voice, report["verdict"])
    left = report["verdict"]["pairs"][0]["left_as_it_is"]
    voice.say(
        f"Wrote {out}: " + (f"{source} as it is." if left else f"the function of {source}, matched to {onto}.")
    )
    tell_pushed(voice, writing)
    return write_json(telling.json, report)
