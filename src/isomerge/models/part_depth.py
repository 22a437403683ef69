"""The config of a model of several stacks of layers, of which one has another depth.

Which key says how many layers a stack has is told by the model's spec: the stack's ``depth`` follows it. What else
says the same number is told by transformers, which has further names for some keys: a BART of older days also has
``num_hidden_layers``, which is its encoder's depth and would count before ``encoder_layers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isomerge.config.agreement import read_by_transformers
from isomerge.config.keys import DEPTHS
from isomerge.config.layer_config import FORMS, entries
from isomerge.errors import IsomergeError
from isomerge.models.transformers_reading import reading_of

KEYS = (*DEPTHS, "num_encoder_layers", "num_decoder_layers")
"""What may say how many layers a stack has."""
Depths = Mapping[str, tuple[int, int]]
"""The least and the most layers of every stack, as of `isomerge.symmetry.language.spec.Spec.depths`."""
Config = Mapping[str, Any]


def with_depth(
    config: Config, stack: str, old: int, new: int, depths_of: Callable[[Config], Depths], ref: str
) -> dict[str, Any]:
    """A config in which one stack has another number of layers, and all others what they had.

    Args:
        config: the parsed ``config.json``.
        stack: what its tensors' names begin with.
        old, new: how many layers it has, and shall have.
        depths_of: what a config says of every stack.
        ref: the model, for messages.

    Raises:
        IsomergeError: the config does not say the stack's depth apart from others', or it says something of every
            layer.
    """
    if said := next((key for key in FORMS if entries(config, key, old) is not None), None):
        raise IsomergeError(
            f"{ref}: config.json says something of every layer ({said}), and not of which of its stacks: its "
            f"layers cannot be sliced"
        )
    full, names = _with_defaults(config)
    before = depths_of(full)
    own = [key for key in KEYS if full.get(key) == old and _follow(full, key, before, depths_of) == {stack}]
    made = {**full, **dict.fromkeys((*own, *(k for k, v in names.items() if v in own and k in config)), new)}
    if not own or depths_of(made) != {**before, stack: (new, new)}:
        raise IsomergeError(
            f"{ref}: config.json does not say apart from other numbers that {stack}* are {old} layers, so the "
            f"number of layers of the slices cannot be written"
        )
    return made


def _with_defaults(config: Config) -> tuple[dict[str, Any], dict[str, str]]:
    """A config with the depths that transformers takes where it has none (a T5 of older days says one number for
    encoder and decoder), and transformers' further names for keys."""
    try:
        real = read_by_transformers(config)
        stored, names = real.to_dict(), dict(type(real).attribute_map)
    except Exception:  # of a config that it refuses, each class raises what it likes
        return dict(config), {}
    more = {key: stored[key] for key in KEYS if type(stored.get(key)) is int and config.get(key) is None}
    return {**config, **more}, names


def _follow(config: Config, key: str, before: Depths, depths_of: Callable[[Config], Depths]) -> set[str]:
    """The stacks whose depth a key says."""
    after = depths_of({**config, key: config[key] + 1})
    return {stack for stack, depth in before.items() if after.get(stack) != depth}


def check_read(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    before: tuple[Config, Mapping[str, tuple[int, ...]]],
    ref: str,
) -> None:
    """Refuse slices of which transformers would leave tensors out, or miss some, where it did not before: what a
    layer has may depend on its number (T5's first layer has the table of distances of all).

    Args:
        config, shapes: of the slices.
        before: those of the model that the config is from.
        ref: the model, for messages.

    Raises:
        IsomergeError: naming a tensor.
    """
    was, now = reading_of(*before), reading_of(config, shapes)
    if was is None or now is None:
        return
    lacking = sorted(set(now.lacking) - set(was.lacking))
    ignored = sorted(set(now.ignored) - set(was.ignored))
    if lacking or ignored:
        what = f"would miss {lacking[0]}" if lacking else f"would not read {ignored[0]}"
        raise IsomergeError(
            f"{ref}: of these slices transformers {what}, as what a layer has depends on its number: choose slices "
            f"that keep such layers at their places"
        )
