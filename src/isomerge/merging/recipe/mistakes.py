"""What is wrong with a recipe, in one sentence: the place, what is expected there, and the key that was probably
meant."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from isomerge.errors import with_points
from isomerge.fusion.registry import methods

ELSEWHERE = {
    "lora": "write an adapter behind its model, `model: MODEL+LORA`",
    "revision": "write a revision behind its model, `model: org/name@REVISION`",
}
"""Keys that people write beside `model`, and what says the same."""

EXAMPLES = {
    "merge_method": "linear",
    "model": "org/name",
    "layer_range": "[0, 4]",
    "models": "[{model: org/a}, {model: org/b}]",
}
"""Values of keys that are left out, or written otherwise."""


def explained(error: ValidationError, schema: type[BaseModel]) -> str:
    """The most telling of pydantic's errors about a text of this schema, as the end of a sentence."""
    errors = error.errors()
    unknown = next((e for e in errors if e["type"] == "extra_forbidden"), None)
    # a misspelt key explains the missing one beside it
    return _mistyped(errors[0], schema) if unknown is None else _misspelt(unknown["loc"], schema)


def _misspelt(place: tuple[Any, ...], schema: type[BaseModel]) -> str:
    known, key = _keys_at(place[:-1], schema), str(place[-1])
    if key in ELSEWHERE:
        return f"unknown key `{_shown(place)}`: {ELSEWHERE[key]}"
    if "parameters" in known and any(key in method.options for method in methods().values()):
        return f"unknown key `{_shown(place)}`: it is a parameter, so write it under `parameters` there"
    near = get_close_matches(key, known, 1) or [name for name in known if name.startswith(f"{key}_")]
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    return f"unknown key `{_shown(place)}`: {hint}"


def _mistyped(error: Any, schema: type[BaseModel]) -> str:
    place, keys = _shown(error["loc"]), ", ".join(f"`{key}`" for key in _keys_at(error["loc"], schema))
    said = error["msg"].removeprefix("Value error, ").replace("tuple", "list").replace("Tuple", "List")
    words, _, kind = said.partition(" or instance of ")
    words, given = f"{words[0].lower()}{words[1:]}", error.get("input")
    near = get_close_matches(str(given), re.findall("'([^']*)'", words), 1)
    if error["type"] == "missing":
        words = f"it is missing: write `{error['loc'][-1]}: {EXAMPLES.get(error['loc'][-1], '...')}` there"
    elif kind and isinstance(given, str) and keys.startswith("`model`"):
        words = f"write `model: {given}`; {words}"
    elif error["type"] in ("list_type", "tuple_type"):
        words = f"{words}, such as {EXAMPLES.get(error['loc'][-1], '[..., ...]')}"
    elif error["type"] == "literal_error" and near:
        words = f"did you mean {near[0]}? {words}"
    return f"`{place}`: {words}{kind and f' with the keys {keys}'}{with_points(given)}"


def _shown(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place))


def _keys_at(place: tuple[Any, ...], schema: type[BaseModel]) -> list[str]:
    """The keys that are allowed at a place."""
    kind: Any = schema
    for part in place:
        if isinstance(part, str) and hasattr(kind, "model_fields") and part in kind.model_fields:
            kind = _entry(kind.model_fields[part].annotation)
    return keys_of(kind) if hasattr(kind, "model_fields") else []


def keys_of(schema: type[BaseModel]) -> list[str]:
    """The keys of a text of this schema, as people write them."""
    return [field.alias or name for name, field in schema.model_fields.items()]


def _entry(annotation: Any) -> Any:
    """The model inside ``list[...] | None`` or ``dict[str, ...]``."""
    while not hasattr(annotation, "model_fields") and (
        inside := [a for a in get_args(annotation) if a is not type(None)]
    ):
        annotation = inside[-1]
    return annotation
