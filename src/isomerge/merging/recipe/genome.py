"""mergekit-evolve's documents, as recipes of which something is searched for.

A genome names models, a method and groups of layers and tensors; searched for are the weight and the density of
every model in every group, or SLERP's t. ``tasks`` say what is raised, ``limit`` on how many documents of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from isomerge.errors import IsomergeError
from isomerge.fusion.method_options import SHARE, natural_range
from isomerge.fusion.registry import method as merge_method
from isomerge.merging.recipe.dimensions import DIGITS
from isomerge.merging.recipe.schema import GENOME, Reference, Strict, explained
from isomerge.records import Json

NORMALIZED = ("ties", "dare_ties", "linear")
"""Methods whose weights mergekit-evolve divides by their sum where nothing else is said."""


class Genome(Strict):
    """What is searched for."""

    models: list[Reference] = Field(min_length=1)
    merge_method: str
    base_model: Reference | None = None
    tokenizer_source: str | None = None
    layer_granularity: int = 0
    normalize: bool | None = None
    allow_negative_weights: bool = False
    filters: list[str] = Field(default_factory=list)
    smooth: bool = False


class Task(Strict):
    """A summand of the score; its metric is accuracy where nothing else is said."""

    name: str
    weight: float = 1.0
    metric: str = "acc,none"


def _task(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Evolution(Strict):
    """A document of mergekit-evolve."""

    genome: Genome
    tasks: list[Annotated[Task, BeforeValidator(_task)]] = Field(default_factory=list)
    limit: int | None = None
    num_fewshot: int | None = None
    shuffle: bool = False
    random_init: bool = False
    apply_chat_template: bool = True
    fewshot_as_multiturn: bool = False

    @property
    def wanted(self) -> tuple[Json, ...] | None:
        """The tasks as `isomerge tune` is told of them."""
        return tuple(task.model_dump() for task in self.tasks) or None

    @property
    def not_done(self) -> list[str]:
        """What the document says that a search does otherwise."""
        asked = (name for name in type(self).model_fields if name not in ("genome", "tasks", "limit"))
        return [name for name in asked if getattr(self, name)]


def evolution(path: str, content: Mapping[str, Any]) -> Evolution | None:
    """A document of mergekit-evolve, checked; None of anything else.

    Raises:
        IsomergeError: a key is unknown or misspelt (with a suggestion), or of the wrong kind.
    """
    if GENOME not in content:
        return None
    try:
        return Evolution.model_validate(content)
    except ValidationError as error:
        raise IsomergeError(f"{path}: {explained(error, Evolution)}") from None


def as_recipe(path: str, genome: Genome) -> Json:
    """The recipe that a genome means: a mean of the models at first, and what is searched for in every group.

    Raises:
        IsomergeError: the method has none of the parameters that mergekit-evolve searches, or SLERP has not two
            models.
    """
    method = merge_method(genome.merge_method)
    content: Json = {"merge_method": genome.merge_method, "tokenizer_source": genome.tokenizer_source}
    models: list[Json] = [{"model": model} for model in genome.models]
    content |= {"models": models, "base_model": genome.base_model, "parameters": {}}
    if "normalize" in method.options:
        normalize = genome.merge_method in NORMALIZED if genome.normalize is None else genome.normalize
        content["parameters"]["normalize"] = normalize
    searched = {name: option for name, option in method.options.items() if name in ("weight", "density", "t")}
    if not searched:
        raise IsomergeError(
            f"{path}: `genome.merge_method` {genome.merge_method} has none of `weight`, `density` and `t`, which a "
            f"genome searches for: write a recipe for isomerge tune with what is searched for in it"
        )
    if "t" in searched and len(models) != 2:
        raise IsomergeError(
            f"{path}: `genome.models` names {len(models)} models, and {genome.merge_method} merges two: name two"
        )
    if "t" in searched and genome.base_model not in genome.models:
        content["base_model"] = genome.models[0]
    for name, option in searched.items():
        for entry in models if option.per_model else [content]:
            if option.per_model and method.base != "none" and entry["model"] == content["base_model"]:
                continue
            bounds = natural_range(option) or SHARE
            least = -bounds.most if name == "weight" and genome.allow_negative_weights else bounds.least
            search: Json = {"search": [least, bounds.most]}
            if option.per_model:
                search["start"] = round(1 / len(models), DIGITS) if name == "weight" else bounds.most
            if genome.layer_granularity > 0:
                search |= {"every": genome.layer_granularity, "smooth": genome.smooth}
            filtered = [*({"filter": part, "value": search} for part in genome.filters), {"value": search}]
            entry.setdefault("parameters", {})[name] = filtered if genome.filters else search
    return content
