"""The keys of a config, with those of the configs inside it: a composite says ``text_config.hidden_size``. And what
it says of tokens, when its model gets another vocabulary: their number, and the ids of single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from isomerge.config.keys import NO_MODEL, VOCABULARY_SIZES, WIDTHS
from isomerge.records import Json

KeyPath = tuple[str, ...]
"""Keys that lead to a value of a config: ``("text_config", "vocab_size")``."""
IDS = ("token_id", "token_ids", "token_index", "suppress_tokens")
"""How keys end whose values are ids of tokens."""


def parts_of(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The configs of the models that a composite is made of, by their keys; those of texts come first."""
    parts = {
        key: value
        for key, value in config.items()
        if isinstance(value, Mapping) and key not in NO_MODEL and _is_model(key, value)
    }
    texts = ("text", "llm", "language", "decoder")
    return dict(sorted(parts.items(), key=lambda item: not any(word in item[0] for word in texts)))


def _is_model(key: str, group: Mapping[str, Any]) -> bool:
    """Whether a group of keys is a config: its model has a type, or, in files that leave types out, a width.

    MPT's ``attn_config`` has an empty type: these are keys of the model itself.
    """
    kind = group.get("model_type")
    return bool(kind) or (kind is None and key.endswith("_config") and any(width in group for width in WIDTHS))


def groups(config: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The ways to all groups of keys that may describe a model, the whole first, those of groups behind them."""
    yield ()
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in NO_MODEL:
            yield from ((key, *rest) for rest in groups(value))


def group_of(config: Mapping[str, Any], group: Sequence[str]) -> Mapping[str, Any]:
    """The group of keys to which a way through a config leads."""
    for key in group:
        config = config[key]
    return config


def flattened(config: Mapping[str, Any]) -> Json:
    """All keys, those of parts under their full names; the frame's own keys come first, then the texts'."""
    parts = parts_of(config)
    own = {key: value for key, value in config.items() if key not in parts}
    for part, group in parts.items():
        own |= {f"{part}.{key}": value for key, value in flattened(group).items()}
    return own


def split(key: str) -> tuple[str, str]:
    """The part that a full name belongs to (with its dot, empty for the frame), and the key there."""
    part, dot, base = key.rpartition(".")
    return part + dot, base


def counts(config: Mapping[str, Any], size: int, bound: Callable[[Mapping[str, Any]], int | None]) -> list[KeyPath]:
    """Where a config says how many tokens there are: in the whole, or in one of the models that it is made of.

    That is where another number changes what the spec makes of it. The wholes around that part say it as well,
    where they have the same number, and so does a decoder beside it.

    Args:
        config: with all that counts, as it was bound to its spec.
        size: the number of tokens.
        bound: the number that the spec makes of such a config; None where it fits none.
    """
    said = ((*part, key) for part in groups(config) for key in VOCABULARY_SIZES)
    every = [path for path in said if group_of(config, path[:-1]).get(path[-1]) == size]
    paths = [path for path in every if bound(with_values(config, dict.fromkeys([path], size + 1))) != size]
    if not paths:  # a default of the architecture: it is said where that changes something
        lacking = [(*path, VOCABULARY_SIZES[0]) for path in groups(config)]
        paths = [path for path in lacking if bound(with_values(config, dict.fromkeys([path], size + 1))) != size]
        return paths[:1]
    around = {(*path[:n], VOCABULARY_SIZES[0]) for path in paths for n in range(len(path))} | {
        ("decoder", VOCABULARY_SIZES[0])
    }
    return [path for path in every if path in paths or path in around]


def with_values(config: Mapping[str, Any], values: Mapping[KeyPath, Any]) -> Json:
    """A copy with other values; parts that it lacks are made."""
    copy = dict(config)
    for path, value in values.items():
        inner = copy
        for key in path[:-1]:
            inner[key] = dict(inner.get(key) or {})
            inner = inner[key]
        inner[path[-1]] = value
    return copy


def renumbered(
    config: Mapping[str, Any], moved: Mapping[int, int], fallback: Mapping[str, Any], parts: Sequence[KeyPath]
) -> Json:
    """Ids of tokens follow their tokens, in the whole and in the parts that lead to one of these paths.

    Those whose token the output lacks become what the model says whose vocabulary it is (``fallback``), or None.
    """
    copy = dict(config)
    for key, value in config.items():
        inside = [path[1:] for path in parts if path[0] == key and len(path) > 1]
        if inside and isinstance(value, Mapping):
            other = fallback.get(key)
            copy[key] = renumbered(value, moved, other if isinstance(other, Mapping) else {}, inside)
            continue
        ids = value if isinstance(value, list) else [value]
        if not key.endswith(IDS) or not all(type(at) is int and at >= 0 for at in ids):
            continue
        now = [moved[at] for at in ids if at in moved]
        copy[key] = (now if isinstance(value, list) else now[0]) if now else fallback.get(key)
    return copy
