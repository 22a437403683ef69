"""mergekit's ``modules`` in a recipe: their keys in place of them where they all say the same, and those beside for
what they do not say; filters where they differ in parameters alone. What else they differ in takes a merge for each
(`isomerge.merging.recipe.module_steps`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.config.keys import PARTS
from isomerge.errors import IsomergeError
from isomerge.records import Json


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
