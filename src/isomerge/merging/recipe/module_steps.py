"""Recipes whose ``modules`` differ in more than parameters: other models, another method or base for the encoder
than for the decoder. Each module's merge is a step of its own, and a last step takes of every output the tensors of
its module.

mergekit has one method and one base for all modules; a module may have its own here. Which tensors are a module's
is told by their names (`isomerge.merging.recipe.recipe_modules`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.recipe_modules import check_known, filtered_modules, filters_of, ordered, sliced
from isomerge.merging.recipe.recipe_steps import PLAIN, WORDS, Step, named_models

WRITTEN = ("dtype", "out_dtype")
"""Keys of the recipe that the last step has as well."""


def module_steps(path: str | Path, content: Any) -> list[Step] | None:
    """The steps of a recipe of one document whose modules differ in more than parameters; None of any other.

    Args:
        path: of the recipe.
        content: of its one document.

    Raises:
        IsomergeError: modules that nobody knows, that are sliced, or that are aligned onto different models.
    """
    path = os.path.expanduser(path)
    modules = content.get("modules") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(modules, dict) or len(modules) < 2:
        return None
    said = {
        str(name): {k: v for k, v in module.items() if v is not None}
        for name, module in modules.items()
        if isinstance(module, dict)
    }
    first = next(iter(said.values()), {})
    if len(said) < len(modules) or all(module == first for module in said.values()) or filtered_modules(said):
        return None  # which is merged at once, or refused, where it is read
    check_known(path, said)
    for name, module in said.items():
        if "slices" in module:
            raise sliced(path, name)
    shared = {k: v for k, v in content.items() if k not in ("modules", "name", "checksums")}
    if twice := sorted({"models", "slices"} & shared.keys()):
        raise IsomergeError(f"{path}: `{twice[0]}` stands beside `modules`: give one of them")
    steps = [Step(path, name, _of_module(shared, module, name)) for name, module in said.items()]
    _check_names(path, steps)
    _check_anchors(path, steps)
    return [*steps, Step(path, None, _joining(shared, list(said)), tuple(said))]


def _of_module(shared: Mapping[str, Any], module: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The whole merge by what one module says."""
    beside = dict(shared)
    if "merge_method" in module and module["merge_method"] != shared.get("merge_method"):
        beside.pop("parameters", None)  # of the other method
    found = {**beside, "name": name, "modules": {name: dict(module)}}
    models = module.get("models")
    only = models[0] if isinstance(models, list) and len(models) == 1 else None
    based = module.get("base_model", beside.get("base_model")) is not None
    averaged = module.get("merge_method", beside.get("merge_method")) == "linear"
    if isinstance(only, Mapping) and averaged and not based:
        # the average of one model, which mergekit takes and a merge of whole models does not
        entry = {k: v for k, v in only.items() if k != "parameters"}
        kept = {k: v for k, v in found.items() if k != "parameters"}
        return {**kept, "merge_method": "passthrough", "modules": {name: {"models": [entry]}}}
    return found


def _joining(shared: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The last step: of every tensor the module's own, whose weight is one, as all others' is zero."""
    order, models = ordered(names), []
    for name in names:
        weight = filters_of({other: float(other == name) for other in names}, order)
        models.append({"model": name, "parameters": {"weight": weight}})
    return {"merge_method": "linear", "models": models, **{k: shared[k] for k in WRITTEN if k in shared}}


def _check_names(path: str, steps: list[Step]) -> None:
    """Refuse a module that is called as one of the models is: which is meant would be open."""
    models = {model for step in steps for model in named_models(step.content)}
    for name in (str(step.name) for step in steps):
        if name in models or not PLAIN.fullmatch(name) or name in WORDS:
            raise IsomergeError(
                f"{path}: `modules.{name}` is called as one of the models: write the model's path, ./{name}"
            )


def _check_anchors(path: str, steps: list[Step]) -> None:
    """Refuse modules that would be aligned onto different models, whose streams then have different bases."""
    aligns = [step for step in steps if step.content.get("align") not in (None, False)]
    anchors = {str(_anchor(step.content)) for step in aligns}
    if len(anchors) > 1:
        raise IsomergeError(
            f"{path}: modules are aligned onto {' and '.join(sorted(anchors))}: one part of a model must read what "
            "another writes, so give all the same `base_model`, or the same first model"
        )


def _anchor(content: Mapping[str, Any]) -> Any:
    (module,) = content["modules"].values()
    base = module.get("base_model", content.get("base_model"))
    models = module.get("models")
    entry = models[0] if base is None and isinstance(models, list) and models else base
    return entry.get("model") if isinstance(entry, Mapping) else entry
