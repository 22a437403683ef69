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

from isomerge.config.keys import PARTS
from isomerge.errors import IsomergeError
from isomerge.merging.recipe.recipe_modules import check_known, filtered_modules, filters_of, ordered
from isomerge.merging.recipe.recipe_steps import PLAIN, WORDS, Step, named_models
from isomerge.records import Json

WRITTEN = ("dtype", "out_dtype")
"""Keys of the recipe that the last step has as well."""


def module_steps(path: str | Path, content: Any) -> list[Step] | None:
    """The steps of a recipe of one document whose modules differ in more than parameters; None of any other.

    Args:
        path: of the recipe.
        content: of its one document.

    Raises:
        IsomergeError: modules that nobody knows, that have no layers to slice, or that are aligned onto different
            models.
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
    cut = [name for name, module in said.items() if "slices" in module]
    alike = not cut and (all(module == first for module in said.values()) or filtered_modules(said))
    if len(said) < len(modules) or alike:
        return None  # which is merged at once, or refused, where it is read
    check_known(path, said)
    layers = {name: _kept_layers(path, name, said[name]["slices"]) for name in cut}
    if layers and content.get("align") not in (None, False):
        raise IsomergeError(
            f"{path}: `align` beside `modules.{cut[0]}.slices`: the streams of modules that are sliced are not "
            f"aligned: leave `align` out"
        )
    shared = {k: v for k, v in content.items() if k not in ("modules", "name", "checksums")}
    if twice := sorted({"models", "slices"} & shared.keys()):
        raise IsomergeError(f"{path}: `{twice[0]}` stands beside `modules`: give one of them")
    steps = [Step(path, name, _of_module(shared, module, name, layers)) for name, module in said.items()]
    _check_names(path, steps)
    _check_anchors(path, steps)
    return [*steps, Step(path, None, _joining(shared, list(said)), tuple(said))]


def _kept_layers(path: str, name: str, slices: Any) -> list[list[int]]:
    """Which layers of a module the output has, by the first source of every slice: so that the steps of all modules
    write models of one shape, each module is sliced in the others' steps as well, whose tensors of it are not used.

    Raises:
        IsomergeError: the module is none that has layers, or a slice has no range of layers.
    """
    if name not in PARTS:
        raise IsomergeError(
            f"{path}: `modules.{name}.slices`: what is in no other module has no layers to slice: give `models`"
        )
    kept = []
    for part in slices if isinstance(slices, list) and slices else [None]:
        sources = part.get("sources") if isinstance(part, Mapping) else None
        source = sources[0] if isinstance(sources, list) and sources else None
        layers = source.get("layer_range") if isinstance(source, Mapping) else None
        if not isinstance(layers, list) or len(layers) != 2 or not all(type(x) is int for x in layers):
            raise IsomergeError(
                f"{path}: `modules.{name}.slices`: every slice has `sources`, each with a "
                f"`layer_range` [first, last)"
            )
        kept.append(layers)
    return kept


def _of_module(
    shared: Mapping[str, Any], module: Mapping[str, Any], name: str, layers: Mapping[str, list[list[int]]]
) -> Json:
    """The whole merge by what one module says, all others' layers as they will be."""
    beside = dict(shared)
    if "merge_method" in module and module["merge_method"] != shared.get("merge_method"):
        beside.pop("parameters", None)  # of the other method
    content: Json = {**beside, "name": name, "modules": {name: dict(module)}}
    if layers:
        others = {other: kept for other, kept in layers.items() if other != name}
        content["sliced"] = {**({"module": name} if name in layers else {}), "layers": others}
    models = module.get("models")
    only = models[0] if isinstance(models, list) and len(models) == 1 else None
    based = module.get("base_model", beside.get("base_model")) is not None
    averaged = module.get("merge_method", beside.get("merge_method")) == "linear"
    if isinstance(only, Mapping) and averaged and not based:
        # the average of one model, which mergekit takes and a merge of whole models does not
        entry = {k: v for k, v in only.items() if k != "parameters"}
        kept = {k: v for k, v in content.items() if k != "parameters"}
        return {**kept, "merge_method": "passthrough", "modules": {name: {"models": [entry]}}}
    if name in layers and averaged and not based and all(len(part["sources"]) == 1 for part in module["slices"]):
        parts = [
            {"sources": [{k: v for k, v in source.items() if k != "parameters"} for source in part["sources"]]}
            for part in module["slices"]
        ]
        kept = {k: v for k, v in content.items() if k != "parameters"}
        return {**kept, "merge_method": "passthrough", "modules": {name: {"slices": parts}}}
    return content


def _joining(shared: Mapping[str, Any], names: list[str]) -> Json:
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
