"""The recipe that makes experts again, in one normal form: defaults are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.recipe.schema import AlignBlock, ExpertsRecipe
from isomerge.options import MatchingOptions
from isomerge.records import Json
from isomerge.run.absolute_names import absolute_data, absolute_path, lasting_ref


def experts_recipe_text(recipe: ExpertsRecipe, said: Mapping[str, Any], seed: int, dtype: str | None) -> str:
    """The YAML of a run.

    Args:
        recipe: what was asked for.
        said: the options of the match that were said, in the recipe or beside it.
        seed: of what is drawn.
        dtype: of the output; None: the base's.
    """
    content: Json = {"base_model": lasting_ref(recipe.base_model), "merge_method": "moe"}
    content["gate_mode"] = recipe.gate_mode
    content["experts_per_token"] = recipe.experts_per_token
    if dtype:
        content["dtype"] = dtype
    if recipe.architecture:
        content["architecture"] = recipe.architecture
    for name, entries in (("experts", recipe.experts), ("shared_experts", recipe.shared_experts)):
        if entries:
            rows = [entry.model_dump(exclude_defaults=True) for entry in entries]
            content[name] = [{**row, "source_model": lasting_ref(row["source_model"])} for row in rows]
    align = _align(recipe.align, said, seed)
    if set(align) != {"enabled"} or align["enabled"] is not False:
        content["align"] = align["enabled"] if set(align) == {"enabled"} else align
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=116)


def _align(block: AlignBlock, said: Mapping[str, Any], seed: int) -> Json:
    """The block `align`: what is not what it is by default."""
    defaults = MatchingOptions().given()
    settings: Json = {"enabled": block.enabled}
    own = {name: getattr(block, name) for name, key in MergeRequest.recipe_keys().items() if key.experts}
    settings |= {name: value for name, value in own.items() if value != getattr(MergeRequest, name)}
    if block.spec is not None:
        settings["spec"] = absolute_path(block.spec)
    for name, value in said.items():
        if value == defaults.get(name) or name not in AlignBlock.model_fields:
            continue
        settings[name] = absolute_data(value) if name in ("data", "learn") and isinstance(value, str) else value
    return {**settings, "seed": seed} if seed else settings
