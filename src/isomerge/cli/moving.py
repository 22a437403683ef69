"""What the command line says of models that are moved: ``isomerge align``, ``apply`` and ``canon``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isomerge.cli.console import Voice, distance_table, stream_table, tell_files, tell_verdict, warn_fixed
from isomerge.cli.evidence import evidence_lines, rounding_lines
from isomerge.options.requests import moving as asked_for
from isomerge.records import Json

if TYPE_CHECKING:
    from isomerge.quotient.canonical import Canonicity, ShownGap
    from isomerge.run.alignment_runs import AlignReport, ApplyReport


def plan_align(voice: Voice, asked: asked_for.Align) -> Json:
    """The plan, and what it will take."""
    from isomerge.cli.dry_run import tell_alignment
    from isomerge.commands.aligning import planned_align

    with planned_align(asked) as plan:
        report = tell_alignment(voice, plan)
    tell_files(voice, asked.matching)
    return report


def run_align(voice: Voice, asked: asked_for.Align) -> AlignReport:
    """The source aligned and written, and the alignment where it is to be saved."""
    from isomerge.commands.aligning import planned_align
    from isomerge.symmetry.patch_file import check_patch_file

    if asked.save_alignment is not None:
        check_patch_file(asked.save_alignment, f"--save-alignment {asked.save_alignment}")
    with voice.progress(asked.progress) as observer, planned_align(asked, observer) as plan:
        alignment, report = plan.run()
    if asked.save_alignment is not None:
        alignment.save(asked.save_alignment)
    return report


def tell_align(voice: Voice, asked: asked_for.Align, report: AlignReport) -> None:
    """How close the source came, and what that means."""
    tell_files(voice, asked.matching)
    verdict, dead = report.verdict, report.run.dead_blocks
    warn_fixed(voice, report.run.fixed)
    stream_table(voice, report.notes, report.streams, verdict)
    distance_table(voice, report.moves.distance)
    if dead:
        voice.warn(f"{len(dead)} blocks are rank-deficient and were not balanced: {', '.join(dead[:4])}")
    voice.say(*rounding_lines(report.rounding), *evidence_lines(report.streams))
    tell_verdict(voice, verdict)
    left = verdict is not None and verdict.all_left
    voice.say(
        f"Wrote {asked.out}: "
        + (f"{asked.source} as it is." if left else f"the function of {asked.source}, matched to {asked.onto}.")
    )


def tell_apply(voice: Voice, asked: asked_for.Apply, report: ApplyReport[Any]) -> None:
    """How far the model was moved."""
    if voice.verbose:
        layers = report.distance.layers.items()
        voice.table(
            ["moved by", "", "norm"],
            [[f"layer {n}", f"{gap.after:.6g}", f"{gap.norm:.6g}"] for n, gap in layers],
        )
    voice.say(*rounding_lines(report.rounding))
    total = report.distance.total
    voice.say(f"Wrote {asked.out}: moved by {total.after:.6g} (norm {total.norm:.6g}).")


def tell_canon(voice: Voice, asked: asked_for.Canon, report: ApplyReport[Canonicity]) -> None:
    """How clear every choice was."""
    voice.say(*rounding_lines(report.rounding))
    assert report.about is not None
    degeneracy = report.about.degeneracy
    warn_fixed(voice, report.run.fixed)
    voice.say(*(f"note: {note}" for note in report.notes))
    voice.table(
        ["least clear", "choice of", "gap", "would move the weights by"], [_row(gap) for gap in degeneracy.gaps]
    )
    if voice.verbose and degeneracy.ambiguous:
        voice.table(["ambiguous", "choice of", "gap", "moves"], [_row(gap) for gap in degeneracy.ambiguous])
    if degeneracy.dead:
        voice.say(
            f"{len(degeneracy.dead)} blocks have no balanced point ({degeneracy.dead[0]}): they are dead or "
            "rank-deficient, and stay in the gauge that they have."
        )
    unique = (
        "is the same for every disguise"
        if degeneracy.unique
        else "may differ between disguises in what is named above"
    )
    voice.say(f"Wrote {asked.out}: the canonical form, which {unique}.")
    if (written := report.about.activations) is not None:
        voice.say(f"Wrote {written.file}: {len(written.layers)} layers on {written.examples} examples.")


def _row(gap: ShownGap) -> list[str]:
    return [gap.element, gap.kind, f"{gap.gap:.1e}", f"{100 * gap.moves:.2g} %"]
