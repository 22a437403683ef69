"""What a merge leaves beside the fused tensors: heads, alignments, the model card and the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from isomerge.evidence.card import RECIPE, TUNED, alignment_file, model_card
from isomerge.evidence.markdown import code
from isomerge.evidence.parents import parents_of
from isomerge.evidence.pictures import SCAN_PICTURE, scan_picture
from isomerge.evidence.report.facts import short_names
from isomerge.merging.decision import Decision
from isomerge.merging.fusing import FusionReport
from isomerge.merging.head_folders import separate_heads
from isomerge.merging.heads import write_kept
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_request import LayerScan
from isomerge.merging.roles import MERGED, Part
from isomerge.records import Json, Record, inline, optional
from isomerge.run.provenance import ModelChecksum, model_checksums, other_models
from isomerge.run.run_report import Match, Moves, RunReport
from isomerge.run.run_verdict import RunVerdict
from isomerge.run.writing_run import StreamWriter
from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    from isomerge.merging.measured import Measured


COMMON = "common"
"""What reports say of gains that all models of a merge take on, the first among them."""


class MergeReport(RunReport, kw_only=True):
    """What is said of a merge."""

    fusion: FusionReport = inline()
    moves: Moves = inline()
    align: bool
    spaces: str
    layers: str | None
    decided: Decision | None
    vocabulary: str | None = optional()
    streams: Sequence[Json]
    """Of passes over whole models, by our solvers."""
    match: Match | None = optional()
    anchor: str | None = optional()
    mean: Json | None = optional()
    """Of a common mean, where the ``anchor`` is none."""
    gains: str | None = optional()
    """``common`` where streams were turned, and distances after alignment are between models with common gains."""
    heads: str | None = optional()
    tune: Record | None = optional()
    """Of a search for parameters (`isomerge.tuning.tuner.Tuned`)."""
    forward: Json | None = optional()
    """What a method tells that runs the models."""
    roles: Sequence[Part]
    verdict: RunVerdict | None = None
    head_folders: Sequence[str] | None = optional()
    measured: Measured | None = None
    layer_scan: LayerScan | None = optional()
    checksums: Sequence[ModelChecksum] = ()

    @property
    def is_moved(self) -> bool:
        """Whether anything was matched."""
        return self.align and (self.verdict is None or not self.verdict.all_left)


def finish(
    plan: MergePlan,
    stream: StreamWriter,
    report: MergeReport,
    moves: Sequence[Alignment],
    files: Mapping[str, bytes],
) -> MergeReport:
    """Writes all that is left to write, and the output takes its place; the report as it is written.

    Args:
        plan: what was merged.
        stream: where all fused tensors are written.
        report: of the run, as far as it is known.
        moves: how every source of the plan was moved; none where nothing was, or by no symmetry.
        files: further ones of the output, by their names.
    """
    models = plan.models
    checksums = model_checksums(plan.read, report.run.inputs, plan.request.checksums)
    recipe = _with_checksums(plan, [each.checksum for each in checksums])
    notes = [*report.notes, *other_models(checksums)]
    alignments = {alignment_file(k, len(moves)): alignment for k, alignment in enumerate(moves, 2)}
    by: list[Alignment | None] = [None if plan.gains is None else plan.gains.written] * len(models)
    for source, alignment in zip(plan.sources, moves, strict=False):
        by[models.index(source)] = alignment
    write_kept(stream, plan.heads, models, by, plan.dtype)
    more: dict[str, bytes | Path] = {} if recipe is None else {RECIPE: recipe.encode()}
    links: dict[str, str] = {}
    head_folders = None
    if plan.heads.how == "separate":
        folders, links = separate_heads(stream, models, by, plan.dtype)
        more |= folders
        head_folders = sorted({name.rpartition("/")[0] for name in links})
    result = None
    if plan.matching.data is not None or plan.matching.learn is not None:
        # models are run where there are data alone
        from isomerge.merging.measured import measured

        taught = [*report.streams, report.mean or {}]
        result, said = measured(plan, stream, learned=any(each.get("learned") for each in taught))
        notes += said
    if (scan := plan.request.scan) is not None:
        more[SCAN_PICTURE] = scan_picture(scan.document())
    report = replace(
        report, checksums=checksums, notes=notes, head_folders=head_folders, measured=result, layer_scan=scan
    )
    return stream.finish(report, alignments, _card(plan, report, recipe), more={**more, **files}, links=links)


def _with_checksums(plan: MergePlan, checksums: Sequence[str | None]) -> str | None:
    """The recipe with the checksums of what was read."""
    if plan.recipe is None or not any(checksums):
        return plan.recipe
    return plan.recipe + yaml.safe_dump({"checksums": checksums}, default_flow_style=None, width=116)


def _card(plan: MergePlan, report: MergeReport, recipe: str | None) -> str:
    how = "They were not aligned. "
    if (decided := report.decided) is not None:
        how = f"{decided.what[0].upper()}{decided.what[1:]}, as {decided.why}. "
    elif report.align:
        how = "Each was first aligned onto the first along its symmetries. "
        if report.mean is not None:
            how = "All were first matched onto their common mean along their symmetries. "
    merged = [part.model for part in report.roles if MERGED in part.roles]
    document = report.document()
    if report.tune is not None:
        how += f"Its parameters were searched for in {len(document['tune']['trials'])} trials ({TUNED}). "
    text = f"The `{plan.fusion.method.name}` merge of {', '.join(map(code, merged))}. {how}Made by isomerge."
    used = [part.model for part in report.roles if part.in_weights]
    return model_card(
        "Merged checkpoint",
        used,
        text,
        document,
        parents=parents_of(model.checkpoint for model in plan.read if model.ref in used),
        name=f"{plan.fusion.method.name} merge of {', '.join(short_names(merged))}",
        architectures=plan.donor.config.get("architectures") or (),
        recipe=recipe,
        roles=[(part.model, part.sentence) for part in report.roles],
    )
