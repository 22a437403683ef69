"""The keys of a config, with those of the configs inside it: a composite says ``text_config.hidden_size``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isomerge.config.keys import NO_MODEL, WIDTHS
from isomerge.records import Json


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
