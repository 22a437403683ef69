"""mergekit's ``modules`` in a recipe, where they all say the same: their keys in place of them, and those beside
for what they do not say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError


def of_one_module(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
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
    found = {**beside, **{name: value for name, value in module.items() if value is not None}}
    both = [part.get("parameters") or {} for part in (module, beside)]
    if all(isinstance(part, dict) for part in both):
        nearer, wider = both
        found["parameters"] = {
            **wider,
            **{name: _before(value, wider[name]) if name in wider else value for name, value in nearer.items()},
        }
    return found


def _common(path: str | Path, modules: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What all modules say.

    Several that have the same models and parameters are merged as one model is, whose parts are all merged alike.
    """
    first, *others = modules
    for other in others:
        one, two = ({k: v for k, v in modules[name].items() if v is not None} for name in (first, other))
        if differing := sorted(key for key in {*one, *two} if one.get(key) != two.get(key)):
            raise IsomergeError(
                f"{path}: `modules.{first}` and `modules.{other}` have different `{differing[0]}`: all parts "
                "of a model are merged alike here, so give both the same, or name tensors by `filter` under "
                "`parameters`"
            )
        if "slices" in one:
            raise IsomergeError(
                f"{path}: `modules.{other}.slices`: layers are sliced where a model has one stack of "
                "them: give `models`"
            )
    return modules[first]


def _before(nearer: Any, wider: Any) -> Any:
    """A setting that counts before another: where none of its filters fits, the other does."""
    filters, others = ([part] if isinstance(part, Mapping) else part for part in (nearer, wider))
    if not _filtered(filters):
        return nearer
    return [*filters, *(others if _filtered(others) else [{"value": wider}])]


def _filtered(setting: Any) -> bool:
    return isinstance(setting, list) and any(isinstance(entry, Mapping) for entry in setting)
