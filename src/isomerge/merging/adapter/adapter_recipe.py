"""A recipe whose models are all adapters: mergekit's keys, and peft's names of the methods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.fusion.adapter_merges import KINDS
from isomerge.merging.adapter.merge_lora import Asked
from isomerge.merging.recipe.schema import Recipe, read_recipe

ACCEPTED = ("models", "merge_method", "parameters", "name")
PARAMETERS = {"weight": float, "density": float, "rank": int, "majority_sign": str, "seed": int}
"""What stands under ``parameters``; ``weight`` may stand under every model."""


def asked_of_recipe(path: str | Path) -> Asked:
    """What a recipe asks for.

    Raises:
        IsomergeError: the recipe cannot be read, or says what adapters have no part of.
    """
    path = os.path.expanduser(path)
    recipe = read_recipe(path)
    if other := sorted({Recipe.model_fields[name].alias or name for name in recipe.model_fields_set} - {*ACCEPTED}):
        raise IsomergeError(
            f"{path}: `{other[0]}` has no meaning where adapters are merged without their base: a recipe of "
            f"merge-lora has {', '.join(f'`{key}`' for key in ACCEPTED)}"
        )
    if recipe.merge_method not in KINDS:
        raise IsomergeError(
            f"{path}: `merge_method` {recipe.merge_method}: adapters are merged by {', '.join(KINDS)}"
        )
    common = {name: _value(path, f"parameters.{name}", value) for name, value in recipe.parameters.items()}
    weights: list[float | None] = []
    for k, entry in enumerate(recipe.models or ()):
        place = f"models.{k}"
        if beside := sorted(
            (entry.model_fields_set - {"model", "parameters"}) | (entry.parameters.keys() - {"weight"})
        ):
            raise IsomergeError(
                f"{path}: `{place}` has `{beside[0]}`, but an adapter has a `weight` of its own alone: write "
                "what else there is under the recipe's `parameters`"
            )
        own = entry.parameters.get("weight")
        weights.append(common.get("weight") if own is None else _value(path, f"{place}.parameters.weight", own))
    common.pop("weight", None)
    said = [weight for weight in weights if weight is not None]
    if said and len(said) < len(weights):
        raise IsomergeError(f"{path}: `models`: give every adapter a `weight`, or none of them")
    models = tuple(entry.model for entry in recipe.models or ())
    return Asked(models, recipe.merge_method, tuple(said) or None, **common)


def _value(path: str, place: str, value: Any) -> Any:
    """A parameter of the kind that it has."""
    name = place.rpartition(".")[2]
    if name not in PARAMETERS:
        raise IsomergeError(f"{path}: unknown key `{place}`: known are {', '.join(PARAMETERS)}")
    kind: Any = PARAMETERS[name]
    kinds = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        words = {float: "a number", int: "a whole number", str: "a word"}[kind]
        raise IsomergeError(f"{path}: `{place}` is {value!r}: give {words}")
    return kind(value)
