"""What a recipe of experts and the options beside it ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.commands.opening import dtype_name
from isomerge.errors import IsomergeError
from isomerge.merging.experts.expert_checks import check_experts_recipe
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.recipe.no_code import check_imports, check_no_code
from isomerge.merging.recipe.recipe_words import told_in_keys
from isomerge.merging.recipe.schema import ExpertsRecipe, read_experts_recipe
from isomerge.observe.prompt_rows import DRAWS, RUNS
from isomerge.options import MatchingOptions
from isomerge.options.requests import merging as asked_for
from isomerge.options.unused import note_idle
from isomerge.solve.match_checks import matching_of
from isomerge.solve.match_options import Matching


@dataclass(frozen=True)
class ExpertsAsked:
    """What a recipe and the options beside it ask for."""

    path: str
    recipe: ExpertsRecipe
    match: Matching
    said: Mapping[str, Any]
    dtype: str | None
    spec: str | Path | None
    seed: int

    def reads(self) -> list[Any]:
        """What is read, by name."""
        return [self.recipe.model_names()]


def experts_of(
    path: str | Path,
    *,
    matching: MatchingOptions,
    said: Mapping[str, Any],
    repair: Any = None,
    spec: str | Path | None = None,
    dtype: Any = None,
) -> ExpertsAsked:
    """What is asked for; nothing is opened.

    Args:
        path: the recipe.
        matching: what is looked at beside the weights, as the command has it.
        said: those options of it that were said: they count more than the recipe's.
        repair: refused, as there is one model whose activations the output has.
        spec, dtype: of the command; they count more than the recipe's.

    Raises:
        IsomergeError: the recipe is wrong, or an option says nothing of experts.
    """
    file = os.path.expanduser(path)
    recipe = read_experts_recipe(file)
    check_imports(recipe.imports, file)
    check_no_code(recipe.align, file)
    check_experts_recipe(recipe, file)
    if repair is not None:
        raise IsomergeError("--repair re-normalises averages, and experts are none: leave it out")
    every = {**recipe.align.matching(), **{name: said[name] for name in said if name != "dtype"}}
    if every.get("stats_src"):
        raise IsomergeError("--stats-src: statistics are of one model that is moved; give --data for experts")
    with told_in_keys(file, recipe, every):
        match = matching_of(MatchingOptions.of({**matching.given(), **every}))
    if recipe.align.enabled is False and match.needs_models:
        name = "learn" if match.learn else "search" if match.search else "data"
        raise IsomergeError(f"--{name} is what experts are aligned by, and nothing is aligned: add `align: true`")
    dtype = dtype_name(dtype) or recipe.dtype
    return ExpertsAsked(file, recipe, match, every, dtype, spec or recipe.align.spec, int(every.get("seed") or 0))


def note_idle_options(asked: ExpertsAsked, out: Any) -> None:
    """Note the options that do nothing in this run.

    Args:
        asked: what is asked for.
        out: the folder.
    """
    recipe, match = asked.recipe, asked.match
    entries = recipe.entries()
    arguments = {name: getattr(match, name) for name in MatchingOptions.declared() if hasattr(match, name)}
    arguments |= {name: getattr(recipe.align, name) for name in MergeRequest.recipe_keys()}
    arguments |= {"align": recipe.align.enabled, "out": out}
    arguments |= {"seed": asked.seed, "method": "moe", "method_reads": recipe.gate_mode in RUNS}
    arguments["random"] = recipe.gate_mode in DRAWS or any(entry.noise_scale for entry in entries)
    note_idle(asked_for.Merge, arguments, asked_for.Merge.defaults())
