"""``isomerge align``: the same function in other weights, closest to an anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.matching_options import tell_files, with_matching
from isomerge.cli.running_options import with_running


@with_matching
@with_running
def align(
    source: Annotated[str, typer.Argument(help="The model to move: a folder or hub id.")],
    onto: Annotated[str, typer.Option("--onto", help="The anchor: the model to come close to.")],
    out: o.Out,
    matching: dict[str, Any],
    running: dict[str, Any],
    align: Annotated[
        bool,
        typer.Option(
            "--align",
            help="Match also what is aligned already, as fine-tunes of one base are; by default it is left as it is.",
        ),
    ] = False,
    spaces: o.Spaces = None,
    layers: o.Layers = None,
    untie: o.Untie = False,
    save_alignment: Annotated[
        Path | None, typer.Option(help="Also save what was applied, to replay it with apply.")
    ] = None,
    spec: o.SpecFile = None,
    allow_pickle: o.Pickle = False,
    out_shard_size: o.ShardSize = "5GB",
    dtype: o.Dtype = None,
    overwrite: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.Json = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Move SOURCE along its symmetry orbit to the point closest to the anchor, and write it."""
    import isomerge
    from isomerge.api.opening import destination, recognised
    from isomerge.cli.console import Voice, distance_table, stream_table, tell_verdict, warn_fixed, write_json
    from isomerge.cli.dry_run import tell_alignment
    from isomerge.cli.evidence import evidence_lines, rounding_lines
    from isomerge.quotient.kinship import kinship
    from isomerge.run.alignment_runs import plan_align
    from isomerge.solve.match_checks import files_of_matching, matching_of
    from isomerge.solve.standing import AUTO
    from isomerge.symmetry.patch_file import check_patch_file

    voice = Voice(quiet, verbose)
    if save_alignment is not None:
        check_patch_file(save_alignment, f"--save-alignment {save_alignment}")
    how = matching_of(**matching)
    if dry_run:
        options = {"shard_size": out_shard_size, "dtype": dtype, "force": overwrite, **running}
        reads = (spec, *files_of_matching(how))
        with (
            recognised([source, onto], spec, allow_pickle, untie) as (a, b),
            destination(out, options, [a, b], *reads) as output,
        ):
            chosen: dict[str, Any] = {
                "spaces": spaces,
                "layers": layers,
                "align": align or AUTO,
                "kinship": kinship,
            }
            tell_alignment(voice, json, plan_align(a, b, output, matching=how, **chosen), output, how)
        return tell_files(voice, matching)
    with voice.progress("aligning") as observer:
        alignment, report = isomerge.align(
            source, onto=onto, out=out, align=align or AUTO, spaces=spaces, layers=layers, untie=untie, spec=spec, allow_pickle=allow_pickle,
            shard_size=out_shard_size, dtype=dtype, force=overwrite, observer=observer, **matching, **running,
        )  # fmt: skip
    if save_alignment is not None:
        alignment.save(save_alignment)
    tell_files(voice, matching)
    warn_fixed(voice, report["fixed"])
    stream_table(voice, report)
    distance_table(voice, report["distance"])
    if report["dead_blocks"]:
        voice.warn(
            f"{len(report['dead_blocks'])} blocks are rank-deficient and were not balanced: {', '.join(report['dead_blocks'][:4])}"
        )
    told = evidence_lines(report)
    for line in (*rounding_lines(report), *told):
        voice.say(line)
    tell_verdict(voice, report["verdict"])
    voice.say(f"Wrote {out}: the function of {source}, {'matched' if told else 'closest'} to {onto}.")
    return write_json(json, report)
