"""What a merge leaves beside the fused tensors: heads, alignments, the model card and the recipe; and what every
input gave to the output: weights that were fused, and with which weight, a base, a config, coordinates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from isomerge.evidence.card import RECIPE, TUNED, alignment_file, model_card
from isomerge.evidence.markdown import code
from isomerge.evidence.parents import parents_of
from isomerge.evidence.pictures import SCAN_PICTURE, scan_picture
from isomerge.evidence.report.facts import short_names
from isomerge.fusion.fusion import Fusion
from isomerge.merging.decision import Decision
from isomerge.merging.fusing import FusionReport
from isomerge.merging.heads import separate_heads, write_kept
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_request import LayerScan
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
MERGED, BASE, LEFT_OUT = "merged", "base", "left out"
CONFIG, TOKENIZER, ANCHOR, REST = "config", "tokenizer", "anchor", "tensors that not all have"
SOURCE_BASE = "source base"
IN_WEIGHTS = (MERGED, BASE, SOURCE_BASE, REST)
"""Roles of models on whose weights the output depends; the others give other things alone."""


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


class Part(Record):
    """What an input gave."""

    model: str
    roles: Sequence[str]
    weight: float | None
    """The method's, None where the model or the method has none; of weights that change from layer to layer the one
    in the middle of the stack."""
    varies: str | None = optional()
    """By what a weight differs that is not one number for the whole model: ``by layer``, ``by tensor`` or both."""

    @property
    def in_weights(self) -> bool:
        """Whether the output's weights depend on this model's."""
        return any(role in IN_WEIGHTS for role in self.roles)

    @property
    def sentence(self) -> str:
        """In words, for the model card."""
        weight = None if self.weight is None else f"weight {self.weight:g}"
        weight = f"a weight that differs {self.varies} (see the recipe)" if self.varies else weight
        parts = [f"{MERGED}, with {weight}" if role == MERGED and weight else role for role in self.roles]
        gifts = [role for role in parts if role in (CONFIG, TOKENIZER, REST)]
        parts = [role for role in parts if role not in gifts]
        parts += [f"gives {' and '.join(gifts)}"] if gifts else []
        return "; ".join(parts)


def parts_of(plan: MergePlan, chosen: Collection[int] | None = None) -> list[Part]:
    """What every model gave, in the run's order, the source bases last.

    Args:
        plan: of the merge.
        chosen: the models that a method has not left out; None: all.
    """
    fusion, request, models = plan.fusion, plan.request, plan.models
    weights = weights_of(fusion, len(models))
    parts = []
    for number, model in enumerate(models):
        fused = number >= fusion.start
        roles = [MERGED if chosen is None or number - fusion.start in chosen else LEFT_OUT] if fused else []
        roles += [BASE] if not number and fusion.first == "base" else []
        if not number:
            roles += [CONFIG, *([TOKENIZER] if model.checkpoint.has_own_files else [])]
            roles += [REST] if plan.plan.alone and not fused else []
        roles += [ANCHOR] if request.align and request.anchor == "first" and number == request.onto else []
        varies = None if weights[number] is None else _varies(fusion, number - fusion.start)
        parts.append(Part(model.ref, roles, weights[number], varies=varies))
    for base in dict.fromkeys(base for base in plan.bases if base is not None):
        parts.append(Part(base.ref, [SOURCE_BASE], None))
    return parts


def weights_of(fusion: Fusion, count: int) -> list[float | None]:
    """The method's weights of a run's models, in its order; None for those that are not fused, and by methods
    without."""
    if "weight" not in fusion.method.options:
        return [None] * count
    return [w if number >= fusion.start else None for number, w in enumerate(fusion.weights(count))]


def _varies(fusion: Fusion, source: int) -> str | None:
    """By what the weight of one of the models that are fused differs; None where it is one number."""
    layers, tensors = fusion.parameters.spread(fusion.method.options["weight"], source)
    return " and ".join(["by layer"] * layers + ["by tensor"] * tensors) or None
