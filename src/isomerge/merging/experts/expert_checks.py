"""What dense models and a recipe must be for experts to be made of them: checked before a weight is read;
and the recipe that makes them again, in one normal form: defaults are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.archs.expert_targets import ExpertTarget, expert_targets
from isomerge.config.agreement import disagreements
from isomerge.config.widths import TOKENS
from isomerge.errors import IsomergeError
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.recipe.merge_recipe import align_keys, recipe_yaml
from isomerge.merging.recipe.schema import AlignBlock, ExpertEntry, ExpertsRecipe, check_checksums
from isomerge.models.compatible import compared_keys
from isomerge.models.experts_view import DenseMlps
from isomerge.models.recognised import Model
from isomerge.observe.prompt_rows import READS
from isomerge.options import MatchingOptions
from isomerge.options.requests.merging import Merge
from isomerge.records import Json
from isomerge.run.absolute_names import absolute_path, lasting_ref
from isomerge.symmetry.axes import LABELS

NO_PLACE = (*(name for name, key in Merge.recipe_keys().items() if not key.experts), "stats")
"""Keys of `align` that say nothing of experts, which are brought to the base's frame one by one."""


def check_experts_recipe(recipe: ExpertsRecipe, path: str | Path) -> None:
    """Refuse recipes that contradict themselves.

    Raises:
        IsomergeError: naming the key.
    """
    count = len(recipe.experts)
    if not count:
        raise IsomergeError(f"{path}: `experts` is empty: list the models that experts are made of")
    if not 1 <= recipe.experts_per_token <= count:
        by_default = "" if "experts_per_token" in recipe.model_fields_set else " by default"
        raise IsomergeError(
            f"{path}: `experts_per_token` is {recipe.experts_per_token}{by_default}, of {count} "
            f"expert{'s' * (count > 1)}: give a number from 1 to {count}"
        )
    check_checksums(recipe, len(recipe.model_names()), path)
    for key in NO_PLACE:
        if key in recipe.align.model_fields_set and getattr(recipe.align, key) != getattr(AlignBlock(), key):
            raise IsomergeError(
                f"{path}: `align.{key}` says nothing of experts, which are brought to the frame of `base_model`: "
                f"leave it out"
            )
    for name, entries in (("experts", recipe.experts), ("shared_experts", recipe.shared_experts)):
        for number, entry in enumerate(entries):
            _check_prompts(recipe, entry, f"{path}: `{name}.{number}`", routed=name == "experts")
    said = [(entry.positive_prompts, entry.negative_prompts) for entry in recipe.experts]
    if recipe.gate_mode in READS and count > 1 and all(prompts == said[0] for prompts in said[1:]):
        raise IsomergeError(
            f"{path}: all `experts` have the same prompts, so that nothing tells them apart: give each its own, or "
            f"`gate_mode: random`"
        )


def _check_prompts(recipe: ExpertsRecipe, entry: ExpertEntry, place: str, *, routed: bool) -> None:
    prompts = [*entry.positive_prompts, *entry.negative_prompts]
    if recipe.gate_mode in READS:
        if routed and not entry.positive_prompts:
            raise IsomergeError(
                f"{place} has no `positive_prompts`, of which `gate_mode: {recipe.gate_mode}` makes its rows: give "
                f"some, or `gate_mode: random`"
            )
        if entry.negative_prompts and not entry.positive_prompts:
            raise IsomergeError(f"{place} has `negative_prompts` alone: give `positive_prompts` as well")
        if any(not prompt for prompt in prompts):
            raise IsomergeError(f"{place} has an empty prompt: give a text, or leave it out")
    for key in ("noise_scale", "residual_scale"):
        value = getattr(entry, key)
        if value is not None and (value != value or abs(value) == float("inf")):
            raise IsomergeError(f"{place}: `{key}` is {value}: give a number")
    if entry.noise_scale is not None and entry.noise_scale < 0:
        raise IsomergeError(f"{place}: `noise_scale` is {entry.noise_scale}: give a number of at least 0")


def told_of_recipe(recipe: ExpertsRecipe) -> list[str]:
    """Notes on a recipe that is no mistake, and may not be what is wanted."""
    notes = idle_prompts(recipe)
    kinds = {(e.source_model, e.noise_scale, e.residual_scale) for e in recipe.experts}
    if len(recipe.experts) > 1 and len(kinds) == 1 and not recipe.experts[0].noise_scale:
        notes.append(
            f"all experts are {recipe.experts[0].source_model}: until it is trained, the output computes what one "
            f"of them would"
        )
    return notes


def idle_prompts(recipe: ExpertsRecipe) -> list[str]:
    """A note where prompts are given that nothing reads."""
    if recipe.gate_mode in READS or not any(e.positive_prompts or e.negative_prompts for e in recipe.entries()):
        return []
    return [f"prompts are not used: `gate_mode: {recipe.gate_mode}` draws the rows of the router"]


def chosen_target(recipe: ExpertsRecipe, kinds: Sequence[str], path: str | Path) -> ExpertTarget:
    """The architecture with experts, as mergekit-moe chooses it: the first that fits the models and the recipe.

    Args:
        recipe: what is asked for.
        kinds: the model types of the base and the experts.
        path: the recipe's.

    Raises:
        IsomergeError: none fits; what stands in the way of each.
    """
    every = expert_targets()
    named = [t for t in every if recipe.architecture is None or t.is_called(recipe.architecture)]
    if not named:
        known = ", ".join(f"{t.mergekit} ({t.model_type})" for t in every)
        raise IsomergeError(f"{path}: `architecture` is {recipe.architecture}: choose from {known}")
    whys = {target.stem: _stands_in_the_way(recipe, kinds, target) for target in named}
    fits = [target for target in named if whys[target.stem] is None]
    if not fits:
        reasons = "; ".join(f"{stem} {why}" for stem, why in whys.items())
        raise IsomergeError(f"{path}: no architecture with experts fits these models and this recipe: {reasons}")
    return fits[0]


def _stands_in_the_way(recipe: ExpertsRecipe, kinds: Sequence[str], target: ExpertTarget) -> str | None:
    """The end of a sentence; None where nothing does."""
    if strange := sorted({*kinds} - {*target.sources}):
        return f"is made of {', '.join(target.sources)}, and there is {', '.join(strange)}"
    shared = recipe.shared_experts
    if target.shared == "none":
        return "has no shared experts" if shared else None
    if len(shared) > 1:
        return f"has one shared expert, and {len(shared)} are listed"
    prompts = any(entry.positive_prompts for entry in shared)
    if target.shared == "plain":
        return "has no gate before its shared expert: leave its prompts out" if prompts else None
    if not shared:
        return "has one shared expert: list it as `shared_experts` (with a `residual_scale` such as 0.1)"
    if recipe.gate_mode in READS and not prompts:
        return "has a gate before its shared expert: give that `positive_prompts`"
    return None


def check_expert(base: Model, expert: Model, target: ExpertTarget, *, aligned: bool) -> list[str]:
    """Refuse a model whose MLPs do not fit the base's stream; notes on what differs and does no harm.

    Args:
        base: the model that gives all else.
        expert: the other one.
        target: the architecture.
        aligned: whether it will be brought to the base's frame, for which all of it must fit.

    Raises:
        IsomergeError: naming both models, and the size, key or tensor.
    """
    pair = f"{base.ref} and {expert.ref}"
    mine, theirs = DenseMlps(base, target), DenseMlps(expert, target)
    if len(mine.layers) != len(theirs.layers):
        raise IsomergeError(
            f"{pair} have different numbers of layers ({len(mine.layers)} and {len(theirs.layers)}): every layer "
            f"of the base gets one expert of each model"
        )
    for layer in range(len(mine.layers)):
        for tail in target.dense:
            if (own := mine.shape(layer, tail)) != (other := theirs.shape(layer, tail)):
                raise IsomergeError(
                    f"tensor {mine.layers[layer][tail]} has shape {list(own)} in {base.ref} and {list(other)} in "
                    f"{expert.ref}: experts must have equal shapes"
                )
    for difference in disagreements(base.config, expert.config, ("hidden_act",)):
        raise IsomergeError(
            f"{pair} differ in config.json: {difference.sentence}; "
            f"an expert's neurons would compute another function"
        )
    return _notes(base, expert, pair, aligned=aligned)


def _notes(base: Model, expert: Model, pair: str, *, aligned: bool) -> list[str]:
    """What differs beside the MLPs.

    Raises:
        IsomergeError: of models that are aligned, which must fit as a whole.
    """
    notes: list[str] = []
    for size, value in base.spec.sizes.items():
        other: Any = expert.spec.sizes.get(size, value)
        if other == value or size == LABELS:
            continue
        what = "vocabularies" if size in TOKENS else "shapes"
        said = f"{pair} have different {what} ({size} is {value} and {other})"
        if aligned:
            way = "isomerge transplant-tokenizer makes them so" if size in TOKENS else "choose models of one size"
            raise IsomergeError(f"{said}, and models are aligned as a whole: {way}, or write `align: false`")
        notes.append(f"{said}: those of {base.ref} are written")
    if not aligned:
        differ = [
            d for d in disagreements(base.config, expert.config, compared_keys(base)) if d.key != "vocab_size"
        ]
        notes += [f"{pair} differ in config.json ({d.key}): what is written has that of {base.ref}" for d in differ]
    return notes


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
    block, defaults = recipe.align, MatchingOptions().given()
    keys, complete = align_keys({name: value for name, value in said.items() if value != defaults.get(name)}, {})
    align: Json = {"enabled": block.enabled}
    own = {name: getattr(block, name) for name, key in MergeRequest.recipe_keys().items() if key.experts}
    align |= {name: value for name, value in own.items() if value != getattr(MergeRequest, name)}
    align |= {"spec": absolute_path(block.spec)} if block.spec is not None else {}
    align |= {**keys, **({"seed": seed} if seed else {})}
    if set(align) != {"enabled"} or align["enabled"] is not False:
        content["align"] = align["enabled"] if set(align) == {"enabled"} else align
    return recipe_yaml(content, said, complete=complete)
