"""What every input of a merge gave to the output: weights that were fused, and with which weight, a base, a config,
coordinates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from isomerge.fusion.fusion import Fusion
from isomerge.merging.merge_plan import MergePlan
from isomerge.records import Record, optional

MERGED, BASE, LEFT_OUT = "merged", "base", "left out"
CONFIG, TOKENIZER, ANCHOR, REST = "config", "tokenizer", "anchor", "tensors that not all have"
SOURCE_BASE = "source base"
IN_WEIGHTS = (MERGED, BASE, SOURCE_BASE, REST)
"""Roles of models on whose weights the output depends; the others give other things alone."""


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
