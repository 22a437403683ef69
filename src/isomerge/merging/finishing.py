"""What a merge leaves beside the fused tensors: heads, alignments, the model card and the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from isomerge.evidence.card import RECIPE, TUNED, alignment_file, model_card
from isomerge.evidence.markdown import code
from isomerge.evidence.parents import parents_of
from isomerge.evidence.pictures import SCAN_PICTURE, scan_picture
from isomerge.evidence.report.facts import short_names
from isomerge.merging.head_folders import separate_heads
from isomerge.merging.heads import write_kept
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.roles import MERGED, in_weights, role_text
from isomerge.plug_ins.command import with_used
from isomerge.run.provenance import weights_checksums
from isomerge.run.writing_run import StreamWriter
from isomerge.symmetry.alignment import Alignment


def finish(
    plan: MergePlan,
    stream: StreamWriter,
    report: dict[str, Any],
    moves: Sequence[Alignment],
    files: Mapping[str, bytes],
) -> None:
    """Writes all that is left to write, and the output takes its place.

    Args:
        plan: what was merged.
        stream: where all fused tensors are written.
        report: of the run; it is told of folders of heads.
        moves: how every source of the plan was moved; none where nothing was, or by no symmetry.
        files: further ones of the output, by their names.
    """
    models, recipe = plan.models, _with_checksums(plan, report)
    alignments = {alignment_file(k, len(moves)): alignment for k, alignment in enumerate(moves, 2)}
    by: list[Alignment | None] = [None if plan.gains is None else plan.gains.written] * len(models)
    for source, alignment in zip(plan.sources, moves, strict=False):
        by[models.index(source)] = alignment
    write_kept(stream, plan.heads, models, by, plan.dtype)
    more: dict[str, Any] = {} if recipe is None else {RECIPE: recipe.encode()}
    links: dict[str, str] = {}
    if plan.heads.how == "separate":
        folders, links = separate_heads(stream, models, by, plan.dtype)
        more |= folders
        report["head_folders"] = sorted({name.rpartition("/")[0] for name in links})
    taught = [*report["streams"], report.get("mean") or {}]
    report["measured"] = None
    if plan.matching.data is not None or plan.matching.learn is not None:
        # models are run where there are data alone
        from isomerge.merging.measured import measured

        report["measured"], notes = measured(plan, stream, learned=any(each.get("learned") for each in taught))
        report["notes"] += notes
    if (scan := plan.request.scan) is not None:
        report["layer_scan"] = dict(scan)
        more[SCAN_PICTURE] = scan_picture(scan)
    more |= files
    with_used(report)
    stream.finish(report, alignments, _card(plan, report, recipe), more=more, links=links)


def _with_checksums(plan: MergePlan, report: dict[str, Any]) -> str | None:
    """The recipe with the checksums of what was read, which the report has beside those that were expected."""
    checksums = weights_checksums((model.checkpoint for model in plan.read), report["inputs"])
    expected = plan.request.checksums or [None] * len(checksums)
    report["checksums"] = [
        {"model": model.ref, "checksum": checksum, **({} if wanted in (None, checksum) else {"in_recipe": wanted})}
        for model, checksum, wanted in zip(plan.read, checksums, expected, strict=True)
    ]
    report["notes"] += other_models(report["checksums"])
    if plan.recipe is None or not any(checksums):
        return plan.recipe
    return plan.recipe + yaml.safe_dump({"checksums": checksums}, default_flow_style=None, width=116)


def other_models(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to tell of models that are not those that a recipe was made with: of a report's ``checksums``, where
    ``in_recipe`` is another one."""
    return [
        f"{row['model']} is not the model that the recipe was made with: its weights files have the checksum "
        f"{row['checksum']}, and the recipe says {row['in_recipe']}; this is another merge, or the same weights "
        f"are stored in other files"
        for row in rows
        if "in_recipe" in row
    ]


def _card(plan: MergePlan, report: dict[str, Any], recipe: str | None) -> str:
    how = "They were not aligned. "
    decided = report.get("decided")
    if decided is not None:
        how = f"{decided['what'][0].upper()}{decided['what'][1:]}, as {decided['why']}. "
    elif report["align"]:
        how = "Each was first aligned onto the first along its symmetries. "
        if "mean" in report:
            how = "All were first matched onto their common mean along their symmetries. "
    merged = [row["model"] for row in report["roles"] if MERGED in row["roles"]]
    if (tuned := report.get("tune")) is not None:
        how += f"Its parameters were searched for in {len(tuned['trials'])} trials ({TUNED}). "
    text = f"The `{plan.fusion.method.name}` merge of {', '.join(map(code, merged))}. {how}Made by isomerge."
    used = in_weights(report["roles"])
    return model_card(
        "Merged checkpoint",
        used,
        text,
        report,
        parents=parents_of(model.checkpoint for model in plan.read if model.ref in used),
        name=f"{plan.fusion.method.name} merge of {', '.join(short_names(merged))}",
        architectures=plan.donor.config.get("architectures") or (),
        recipe=recipe,
        roles=[(row["model"], role_text(row)) for row in report["roles"]],
    )
