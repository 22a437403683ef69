"""Recipes of pipelines: what one component's merge is asked for, by what the recipe says of all and of it alone.

A recipe whose models are pipelines (`isomerge.checkpoint.pipeline`) or single files is merged component by
component. What it says counts for all; ``unet: {...}``, or mergekit's ``modules: {unet: {...}}``, says for one
component what it has of its own: method, parameters, models, base, alignment. ``unet: keep`` is the base's as it
is, ``unet: keep:MODEL`` that of another model.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.checkpoint.yaml_text import read_yaml
from isomerge.errors import IsomergeError
from isomerge.merging.recipe.merge_recipe import align_keys, recipe_yaml
from isomerge.merging.recipe.recipe_modules import of_one_module
from isomerge.merging.recipe.recipe_steps import Step, named_models
from isomerge.models.references import is_assembled
from isomerge.records import Json
from isomerge.run.absolute_names import lasting_ref

KEEP = "keep"
OF_ONE = frozenset(("merge_method", "parameters", "base_model", "models", "slices", "align"))
"""What a component may have of its own."""


@dataclass(frozen=True)
class ComponentStep(Step):
    """What a recipe asks for of one component."""

    @property
    def title(self) -> str:
        """What it is called."""
        return f"component {self.name}"


def pipelines_of(content: Any) -> list[str]:
    """The pipelines that a recipe names, the base first, then as they are mentioned."""
    if not isinstance(content, Mapping):
        return []
    names = named_models(content, whole=True)
    base = content.get("base_model")
    first = [base] if isinstance(base, str) else []
    return [name for name in dict.fromkeys([*first, *names]) if is_assembled(name)]


def own_words(path: str, content: Mapping[str, Any], components: Collection[str]) -> Json:
    """What a recipe says of components by their names: a mapping, or ``keep`` and ``keep:MODEL``.

    Raises:
        IsomergeError: it names no component of the pipelines, says it twice, or in no way that is understood.
    """
    modules = content.get("modules")
    if modules is not None and not isinstance(modules, Mapping):
        raise IsomergeError(f"{path}: `modules` is a mapping from components to what each has")
    beside = {
        name: value
        for name, value in content.items()
        if name in components or (name != "name" and _is_of_one(value))
    }
    if both := sorted(beside.keys() & (modules or {}).keys()):
        raise IsomergeError(f"{path}: `{both[0]}` stands beside `modules.{both[0]}`: give one of them")
    said = {**beside, **(modules or {})}
    for name, value in said.items():
        if name not in components:
            raise IsomergeError(
                f"{path}: `{'' if name in beside else 'modules.'}{name}`: the pipelines have no such component; "
                f"there are {', '.join(sorted(components))}"
            )
        if not _is_kept(value) and not isinstance(value, Mapping):
            raise IsomergeError(
                f"{path}: `{name}` is {value!r:.100}: write a mapping (`merge_method`, `parameters`, ...), `keep` "
                f"or `keep:MODEL`"
            )
    return said


def _is_kept(value: Any) -> bool:
    return isinstance(value, str) and (value == KEEP or value.startswith(f"{KEEP}:"))


def _is_of_one(value: Any) -> bool:
    """Whether a component is given this, and no key of a recipe but a step's name."""
    return _is_kept(value) or (isinstance(value, Mapping) and not OF_ONE.isdisjoint(value))


def component_step(
    path: str, content: Mapping[str, Any], name: str, said: Mapping[str, Any], folders: Mapping[str, str]
) -> ComponentStep:
    """The recipe of one component.

    Args:
        path: what messages call the recipe.
        content: of the whole.
        name: the component.
        said: of `own_words`.
        folders: what names the component, by the name of the pipeline.

    Raises:
        IsomergeError: what it says contradicts itself.
    """
    own = dict(said.get(name) or {})
    shared = {k: v for k, v in content.items() if k not in ("modules", "checksums", *said)}
    method = own.get("merge_method")
    if method is not None and method != shared.get("merge_method"):
        shared.pop("parameters", None)  # of the other method
    whole = {"models", "slices"}
    module = {**{k: v for k, v in shared.items() if k in whole and not whole & own.keys()}, **own}
    beside = {k: v for k, v in shared.items() if k not in whole}
    merged = of_one_module(path, {**beside, "modules": {name: module}})
    step = ComponentStep(path, name, merged)
    return ComponentStep(path, name, step.reading(folders).content)


def kept_recipe(source: str | Path | Step, said: Mapping[str, Any]) -> str:
    """The YAML that makes pipelines' merge again from anywhere: the recipe with lasting names of models, and the
    options of a match that the command line ``said``."""
    content = dict(source.content) if isinstance(source, Step) else read_yaml(os.path.expanduser(source))
    names = {name: lasting_ref(name) for name in named_models(content, whole=True)}
    kept = dict(Step(str(source), None, content).reading(names).content)
    keys, complete = align_keys(said, {})
    if keys:
        align = kept.get("align") or False
        kept["align"] = {**(align if isinstance(align, Mapping) else {"enabled": align}), **keys}
    return recipe_yaml(kept, said, complete=complete)
