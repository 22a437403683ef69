"""mergekit's ``modules`` in a recipe, where there is one: its keys in place of it, and those beside it for what it
does not say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError


def of_one_module(path: str | Path, content: dict[str, Any]) -> dict[str, Any]:
    """A recipe's content without ``modules``.

    Raises:
        IsomergeError: there are several modules, or models stand beside the one.
    """
    modules = content.get("modules")
    if modules is None:
        return content
    if not isinstance(modules, dict) or len(modules) != 1 or not all(isinstance(v, dict) for v in modules.values()):
        raise IsomergeError(
            f"{path}: `modules` is read where it has one entry: name the models under `models`; all their parts "
            f"are merged"
        )
    (module,) = modules.values()
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


def _before(nearer: Any, wider: Any) -> Any:
    """A setting that counts before another: where none of its filters fits, the other does."""
    filters, others = ([part] if isinstance(part, Mapping) else part for part in (nearer, wider))
    if not _filtered(filters):
        return nearer
    return [*filters, *(others if _filtered(others) else [{"value": wider}])]


def _filtered(setting: Any) -> bool:
    return isinstance(setting, list) and any(isinstance(entry, Mapping) for entry in setting)
