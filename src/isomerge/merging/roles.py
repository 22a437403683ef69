"""What every input of a merge gave to the output: weights that were fused, and with which weight, a base, a config,
coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isomerge.fusion.fusion import Fusion
from isomerge.merging.merge_plan import MergePlan

MERGED, BASE, LEFT_OUT = "merged", "base", "left out"
CONFIG, TOKENIZER, ANCHOR, REST = "config", "tokenizer", "anchor", "tensors that not all have"
SOURCE_BASE = "source base"
IN_WEIGHTS = (MERGED, BASE, SOURCE_BASE, REST)
"""Roles of models on whose weights the output depends; the others give other things alone."""


def roles_of(plan: MergePlan, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per model in the run's order, the source bases last: ``{model, roles, weight}``.

    ``weight`` is that of the method, None where the model or the method has none; of weights that change from layer
    to layer (``varies`` is then true) the one in the middle of the stack.

    Args:
        plan: of the merge.
        report: of the run: a method that runs models may have left some out.
    """
    fusion, request, models = plan.fusion, plan.request, plan.models
    weights = weights_of(fusion, len(models))
    chosen = (report.get("forward") or {}).get("chosen")
    rows = []
    for number, model in enumerate(models):
        fused = number >= fusion.start
        roles = [MERGED if chosen is None or number - fusion.start in chosen else LEFT_OUT] if fused else []
        roles += [BASE] if not number and fusion.first == "base" else []
        if not number:
            roles += [CONFIG, *([TOKENIZER] if model.checkpoint.has_own_files else [])]
            roles += [REST] if plan.plan.alone and not fused else []
        roles += [ANCHOR] if request.align and request.anchor == "first" and number == request.onto else []
        row: dict[str, Any] = {"model": model.ref, "roles": roles, "weight": weights[number]}
        rows.append({**row, "varies": True} if weights[number] is not None and _varies(fusion) else row)
    for base in dict.fromkeys(base for base in plan.bases if base is not None):
        rows.append({"model": base.ref, "roles": [SOURCE_BASE], "weight": None})
    return rows


def weights_of(fusion: Fusion, count: int) -> list[float | None]:
    """The method's weights of a run's models, in its order; None for those that are not fused, and by methods
    without."""
    if "weight" not in fusion.method.options:
        return [None] * count
    return [w if number >= fusion.start else None for number, w in enumerate(fusion.weights(count))]


def _varies(fusion: Fusion) -> bool:
    """Whether some model's weight is not one number for the whole model."""
    parts = fusion.parameters.slices
    settings = [*(s for part in parts for s in (*part.sources, part.own)), fusion.parameters.common]
    return len(parts) > 1 or any(isinstance(s.get("weight"), (list, tuple, Mapping)) for s in settings)


def role_text(row: Mapping[str, Any]) -> str:
    """A row in words, for the model card."""
    roles, weight = row["roles"], row["weight"]
    parts = [
        f"{MERGED}, with weight {weight:g}" if role == MERGED and weight is not None else role for role in roles
    ]
    gifts = [role for role in parts if role in (CONFIG, TOKENIZER, REST)]
    parts = [role for role in parts if role not in gifts]
    parts += [f"gives {' and '.join(gifts)}"] if gifts else []
    if row.get("varies"):
        parts.append("its weight changes from layer to layer (see the recipe)")
    return "; ".join(parts)


def in_weights(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The models on whose weights the output depends."""
    return [row["model"] for row in rows if any(role in IN_WEIGHTS for role in row["roles"])]
