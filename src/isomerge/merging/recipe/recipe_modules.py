"""mergekit's ``modules`` in a recipe: their keys in place of them where they all say the same, and those beside for
what they do not say; filters where they differ in parameters alone. Where they differ in other models, another
method or base for the encoder than for the decoder, each module's merge is a step of its own, and a last step takes
of every output the tensors of its module.

mergekit has one method and one base for all modules; a module may have its own here. Which tensors are a module's
is told by their names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.config.keys import PARTS
from isomerge.errors import IsomergeError
from isomerge.merging.recipe.recipe_steps import PLAIN, WORDS, Step, named_models
from isomerge.records import Json

WRITTEN = ("dtype", "out_dtype")
"""Keys of the recipe that the last step has as well."""


def of_one_module(path: str | Path, content: Json) -> Json:
    """A recipe's content without ``modules``.

    Raises:
        IsomergeError: modules say different things, or models stand beside them.
    """
    modules = content.get("modules")
    if modules is None:
        return content
    if not isinstance(modules, dict) or not modules or not all(isinstance(v, dict) for v in modules.values()):
        raise IsomergeError(f"{path}: `modules` is a mapping from modules to what each has, `models` or `slices`")
    module = _common(path, modules)
    beside = {name: value for name, value in content.items() if name != "modules"}
    if twice := sorted({"models", "slices"} & beside.keys()):
        raise IsomergeError(f"{path}: `{twice[0]}` stands beside `modules`: give one of them")
    content_of = {**beside, **{name: value for name, value in module.items() if value is not None}}
    if content_of.get("slices") and len(modules) == 1 and (name := next(iter(modules))) in PARTS:
        content_of.setdefault("sliced", {"module": name})
    both = [part.get("parameters") or {} for part in (module, beside)]
    if all(isinstance(part, dict) for part in both):
        nearer, wider = both
        content_of["parameters"] = {
            **wider,
            **{name: _before(value, wider[name]) if name in wider else value for name, value in nearer.items()},
        }
    return content_of


def _common(path: str | Path, modules: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What all modules say.

    Several that have the same models and parameters are merged as one model is, whose parts are all merged alike;
    those that differ in parameters alone are merged as one model whose parameters have filters.
    """
    first, *others = modules
    for other in others:
        a, b = ({k: v for k, v in modules[name].items() if v is not None} for name in (first, other))
        differing = sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
        if "slices" in a or "slices" in b:
            raise sliced(path, other if "slices" in b else first)
        if differing and (filtered := filtered_modules(modules)) is not None:
            check_known(path, modules)
            return filtered
        if differing:
            raise IsomergeError(
                f"{path}: `modules.{first}` and `modules.{other}` have different `{differing[0]}`: isomerge merge "
                "makes a merge of each, where this recipe is the only document of its file and goes to a folder"
            )
    return modules[first]


def sliced(path: str | Path, name: str) -> IsomergeError:
    """Of layers that are sliced in one of several modules, where these are not merged one by one."""
    return IsomergeError(
        f"{path}: `modules.{name}.slices`: layers of one of several modules are sliced by a merge of each, where "
        f"this recipe is the only document of its file and goes to a folder"
    )


REST = ("shared", "text_decoder")
"""Modules that have what no other one has: T5's embeddings and head, a language model beside a vision tower."""


def check_known(path: str | Path, modules: Iterable[str]) -> None:
    """Refuse modules of which nobody knows what their tensors are called.

    Raises:
        IsomergeError: naming the known ones.
    """
    known = dict.fromkeys((*PARTS, *REST))
    if unknown := next((name for name in modules if name not in known), None):
        raise IsomergeError(
            f"{path}: `modules.{unknown}` is no known part of a model; known are {', '.join(known)}"
        )


def ordered(modules: Collection[str]) -> list[str]:
    """The order in which modules are looked for; the last one has all that is in no other: one of `REST`, else the
    first that is listed."""
    rest = next((name for name in modules if name in REST), next(iter(modules)))
    ranks = list(PARTS)
    others = [name for name in modules if name != rest]
    return [*sorted(others, key=lambda name: ranks.index(name) if name in ranks else len(ranks)), rest]


def filters_of(values: Mapping[str, Any], order: Sequence[str]) -> list[Json] | None:
    """One setting whose filters give every module its own.

    Args:
        values: of the modules that have one: scalars or gradients.
        order: of `ordered`.

    Returns:
        The filters; None where there are none for it: a module has filters of its own, or only what is in no other
        module has a value, or a module has none before it.
    """
    if any(_filtered([value] if isinstance(value, Mapping) else value) for value in values.values()):
        return None
    *named, rest = order
    if rest in values and any(name not in values for name in named):
        return None
    filters = [
        {"filter": part, "value": values[name]} for name in named if name in values for part in PARTS.get(name, ())
    ]
    return [*filters, {"value": values[rest]}] if rest in values else filters


def filtered_modules(modules: Mapping[str, Mapping[str, Any]]) -> Json | None:
    """One module for several that differ in parameters alone, of the same models; None where there is none."""
    plain = [{k: v for k, v in module.items() if k not in ("models", "parameters")} for module in modules.values()]
    entries = [listed for module in modules.values() if isinstance(listed := module.get("models"), list)]
    if any(part != plain[0] for part in plain[1:]) or len(entries) < len(modules):
        return None
    stripped = [[_without_parameters(entry) for entry in listed] for listed in entries]
    if any(listed != stripped[0] for listed in stripped[1:]):
        return None
    order = ordered(modules)
    own = _joined({name: module.get("parameters") for name, module in modules.items()}, order)
    each = [
        _joined({name: _parameters_of(module["models"][k]) for name, module in modules.items()}, order)
        for k in range(len(stripped[0]))
    ]
    if own is None or any(settings is None for settings in each):
        return None
    models = [
        {**entry, "parameters": settings} if settings else entry
        for entry, settings in zip(stripped[0], each, strict=True)
    ]
    return {**plain[0], "models": models, **({"parameters": own} if own else {})}


def _without_parameters(entry: Any) -> Any:
    return {k: v for k, v in entry.items() if k != "parameters"} if isinstance(entry, Mapping) else entry


def _parameters_of(entry: Any) -> Any:
    return entry.get("parameters") if isinstance(entry, Mapping) else None


def _joined(settings: Mapping[str, Any], order: Sequence[str]) -> Json | None:
    """The parameters of several modules in one; None where no filters say them."""
    parameters = {name: {} if value is None else value for name, value in settings.items()}
    if not all(isinstance(value, Mapping) for value in parameters.values()):
        return None
    joined: Json = {}
    for key in dict.fromkeys(key for value in parameters.values() for key in value):
        values = {name: value[key] for name, value in parameters.items() if key in value}
        alike = len(values) == len(parameters) and all(v == next(iter(values.values())) for v in values.values())
        made = next(iter(values.values())) if alike else filters_of(values, order)
        if made is None:
            return None
        joined[key] = made
    return joined


def _before(nearer: Any, wider: Any) -> Any:
    """A setting that counts before another: where none of its filters fits, the other does."""
    filters, others = ([part] if isinstance(part, Mapping) else part for part in (nearer, wider))
    if not _filtered(filters):
        return nearer
    return [*filters, *(others if _filtered(others) else [{"value": wider}])]


def _filtered(setting: Any) -> bool:
    return isinstance(setting, list) and any(isinstance(entry, Mapping) for entry in setting)


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
