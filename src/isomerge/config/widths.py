"""What a config says of a model's sizes, when its model becomes wider or deeper: which keys they are, and the
config with others in their places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from isomerge.config.agreement import _plain
from isomerge.config.config_parts import IDS, KeyPath, with_values
from isomerge.config.keys import NO_MODEL
from isomerge.errors import IsomergeError
from isomerge.records import Json

SHARED = re.compile(r"(key_value|kv)_heads")
"""Keys that say how many heads keys and values have."""
TOKENS = ("vocab", "talk_vocab", "vision_vocab")
"""What specs call sizes over tokens: they belong to a tokenizer, and do not grow with a model."""


@dataclass(frozen=True)
class Said:
    """What a spec makes of a config."""

    sizes: Mapping[str, int]
    depths: Mapping[str, tuple[int, int]]

    @property
    def widths(self) -> dict[str, int]:
        """The sizes that may grow."""
        return {name: value for name, value in self.sizes.items() if name not in TOKENS}


@dataclass(frozen=True)
class Growth:
    """The keys that are to change, by what they say: sizes, or numbers of layers."""

    sizes: dict[KeyPath, int | None] = field(default_factory=dict)
    depths: dict[KeyPath, int] = field(default_factory=dict)
    tokens: bool = False
    """Whether the other config has another number of tokens, which stays as it is."""

    def __bool__(self) -> bool:
        return bool(self.sizes or self.depths)

    def config(self, config: Mapping[str, Any]) -> Json:
        """A config with the new sizes; its numbers of layers stay."""
        return with_values(config, self.sizes)

    def shown(self) -> str:
        """The keys and their values, in words."""
        return ", ".join(f"{'.'.join(path)}={value}" for path, value in {**self.sizes, **self.depths}.items())


Bound = Callable[[Mapping[str, Any]], Said | None]
"""What a spec makes of such a config; None where it refuses it."""


def growth_to(config: Mapping[str, Any], like: Mapping[str, Any], bound: Bound) -> Growth:
    """The keys that say sizes and numbers of layers in which another config differs, with what it says.

    A key says a size where another number changes what the spec makes of the config; a key that one of the two
    leaves out is None there.
    """
    own = bound(config)
    growth = Growth()
    tokens = False
    for path in dict.fromkeys([*_numbers(config), *_numbers(like)]):
        old, new = _value(config, path), _value(like, path)
        if old == new or path[-1].endswith(IDS):
            continue
        now = bound(with_values(config, {path: new}))
        if own is None or (now is not None and now == own):
            continue
        if now is not None and now.widths == own.widths and now.depths == own.depths:
            tokens = True
        elif now is not None and now.depths != own.depths and isinstance(new, int):
            growth.depths[path] = new
        else:
            growth.sizes[path] = new
    more = {
        path: new
        for path, (_, new) in _twice(config, growth.sizes).items()
        if new == _value(like, path) and path not in growth.sizes
    }
    return Growth({**growth.sizes, **more}, growth.depths, tokens)


def _twice(config: Mapping[str, Any], sizes: Mapping[KeyPath, int | None]) -> dict[KeyPath, tuple[str, int | None]]:
    """Keys of the same value as one that changes, with that one's name and its new value: they may say the
    same once more, to the class alone (DeepSeek's key-value heads)."""
    changed = {(path[:-1], _value(config, path)): (path[-1], new) for path, new in sizes.items()}
    every = ((path, changed.get((path[:-1], _value(config, path)))) for path in _numbers(config))
    return {path: change for path, change in every if change is not None and _value(config, path) is not None}


def growth_by(config: Mapping[str, Any], sizes: Mapping[str, int], bound: Bound) -> Growth:
    """The same of keys that are given with their values (``text_config.hidden_size`` is a key of a part).

    Raises:
        IsomergeError: a key that says no size, or a value that is no number of anything.
    """
    own, growth = bound(config), Growth()
    for key, new in sizes.items():
        path = tuple(key.split("."))
        if type(new) is not int or new < 1:
            raise IsomergeError(f"{key}={new} (--set): a size is a whole number from 1")
        now = bound(with_values(config, {path: new + (new == _value(config, path))}))
        if now is not None and now == own:
            raise IsomergeError(
                f"{key}={new} (--set): no size of this model depends on {key}; name a key of config.json that says "
                f"a width, a number of heads, of neurons or of layers"
            )
        if own is not None and now is not None and now.widths == own.widths and now.depths == own.depths:
            raise IsomergeError(
                f"{key}={new} (--set): a vocabulary grows with its tokenizer (isomerge transplant-tokenizer)"
            )
        if new == _value(config, path):
            continue
        if own is not None and now is not None and now.depths != own.depths:
            growth.depths[path] = new
        else:
            growth.sizes[path] = new
    # keys and values of every head of its own stay so
    more = {
        path: new
        for path, (name, new) in _twice(config, growth.sizes).items()
        if "heads" in name and SHARED.search(path[-1]) and path not in growth.sizes
    }
    return Growth({**growth.sizes, **more}, growth.depths)


def grown_twin(config: Mapping[str, Any], growth: Growth, real: Mapping[str, Any]) -> Growth:
    """The growth of a tiny model of the same class that is the same but for the numbers: each size becomes as many
    times as large as the real one's, rounded up to a whole number of times.

    Args:
        config: of the tiny model, defaults filled in.
        growth: of the real one.
        real: its config, defaults filled in.
    """
    sizes: dict[KeyPath, int | None] = {}
    for path, new in growth.sizes.items():
        old, tiny = _value(real, path), _value(config, path)
        if type(new) is int and type(old) is int and type(tiny) is int and old > 0:
            sizes[path] = tiny * -(-new // old)
    depths = {}
    for path in growth.depths:
        tiny = _value(config, path)
        if type(tiny) is int:
            depths[path] = tiny + 1
    return Growth(sizes, depths)


def _numbers(config: Mapping[str, Any], at: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all whole numbers, and of what is left open."""
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in NO_MODEL:
            yield from _numbers(value, (*at, key))
        elif value is None or type(value) is int:
            yield (*at, key)


def _value(config: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = _plain(config)
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
