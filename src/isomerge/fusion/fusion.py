"""A fusion: a merge method with its parameters, and what a run's models are to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.fusion.method_options import Values
from isomerge.fusion.method_parameters import Parameters, of_models
from isomerge.fusion.registry import Method, code_of
from isomerge.fusion.registry import method as merge_method


@dataclass(frozen=True)
class Fusion:
    """How the aligned tensors of a run's models become one."""

    method: Method
    parameters: Parameters
    first: str = "model"
    """What the run's first model is, whose config and tokenizer are written: one of the models that are fused, the
    method's base, or neither (``donor``)."""
    seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def start(self) -> int:
        """The number of the first model that is fused."""
        return 0 if self.first == "model" else 1

    @property
    def picks(self) -> bool:
        """Whether every tensor is one model's, as it is: an average whose weights, behind filters, are all 0 or 1,
        as where parts of a model come from merges of their own."""
        parts = self.parameters.slices
        alone = self.method.name == "linear" and len(parts) == 1 and not (parts[0].own or self.parameters.common)
        settings = [settings.get("weight") for settings in parts[0].sources]
        listed = alone and all(isinstance(setting, list) for setting in settings)
        return listed and all(
            isinstance(entry, Mapping) and entry.get("value") in (0, 1)
            for setting in settings
            for entry in setting or ()
        )

    def key(self) -> list[Any]:
        """What determines the result beside the models: for the key of a run."""
        seed = self.seed if self.method.random else None
        return [self.method.name, repr(self.parameters), self.first, seed, *code_of(self.method)]

    def weights(self, count: int) -> list[float]:
        """How much each of a run's models counts, for a common mean: by the method's weights in the middle of the
        stack."""
        if "weight" not in self.method.options:
            return [1.0] * count
        weight = self.parameters.at(self.method, "", 1, depth=3)["weight"]
        return [1.0] * self.start + [1.0 if w is None else float(w) for w in weight][: count - self.start]


def fusion_of(
    count: int,
    *,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    parameters: Values | None = None,
    base: bool = False,
    seed: int = 0,
) -> Fusion:
    """The fusion of whole models, checked before anything is read.

    Args:
        count: how many models are merged, the base left out.
        weights: one per model.
        parameters: of the method.
        base: whether a base model is named.

    Raises:
        IsomergeError: too few models, an unknown method, a base that is missing or of no use, or parameters that
            cannot be used.
    """
    chosen = merge_method(method)
    first = role_of_base(chosen, base)
    if count + base < 2 and method != "passthrough":
        raise IsomergeError(
            "merge needs at least two models: name another one; --method passthrough writes one alone, such as "
            "MODEL+LORA with its adapter merged in"
        )
    if weights is not None:
        weights = [float(w) for w in weights]
        if len(weights) != count or not all(map(isfinite, [*weights, sum(weights)])):
            raise IsomergeError(f"--weights: {count} finite numbers are needed, got {weights}")
    parsed = of_models(chosen, count, weights=weights, given=parameters)
    return Fusion(chosen, parsed, first, seed)


def _of_one(method: Method) -> str:
    """What a method that goes from a base to one model does with two, and what merges more."""
    if method.models != (1, 1):
        return ""
    return f"; {method.name} goes from it to one other model, and karcher, multislerp and linear merge several"


def role_of_base(method: Method, named: bool) -> str:
    """What a named base is to a method; ``model`` when none is named.

    Raises:
        IsomergeError: the method needs one.
    """
    if named:
        return "donor" if method.base == "none" else "base"
    if method.base == "required":
        raise IsomergeError(
            f"the method {method.name} needs a base model: name it with --base-model, or base_model in a recipe"
            f"{_of_one(method)}"
        )
    return "model"
