"""What ``config.json`` says of single layers, put together as the layers of a stack are (see `isomerge.checkpoint.layers`).

transformers has no one form for it: lists with one entry for every layer, strings with one letter for each, mappings and
lists of layers' numbers, runs, and rules by which a layer's number says what it is. Which key has which form is the same in
all architectures, and is declared here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isomerge.errors import IsomergeError

DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""How many layers there are."""
ENTRIES = (
    "layer_types",
    "mlp_layer_types",
    "layers_block_type",
    "attention_layers",
    "no_rope_layers",
    "hybrid_override_pattern",
    "indexer_types",
    "layer_rope_theta",
    "attention_window",
    "activation_sparsity_pattern",
    "intermediate_size",
    "num_attention_heads_per_layer",
    "per_layer_config",
)
"""One entry for every layer where it is a list or a string, some layers' by number where it is a mapping; else it is of all."""
CYCLES = ("block_types",)
"""A list that begins again after its last entry."""
RUNS = ("attention_types",)
"""Pairs of some entries and how often they come."""
NUMBERS = ("mlp_only_layers", "attn_layer_indices", "moe_layers", "full_attn_idxs")
"""The numbers of some layers."""
LEADING = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
"""How many of the first layers are dense."""
PERIODS = {
    "attn_layer_period": ("layers_block_type", "layer_types"),
    "expert_layer_period": (),
    "decoder_sparse_step": ("mlp_layer_types",),
    "moe_layer_freq": ("mlp_layer_types",),
    "moe_layer_interval": ("mlp_layer_types",),
    "interleave_moe_layer_step": ("moe_layers",),
    "no_rope_layer_interval": ("no_rope_layers",),
    "full_attention_interval": ("layer_types",),
    "sliding_window_pattern": ("layer_types",),
    "global_attn_every_n_layers": ("layer_types",),
}
"""After how many layers a kind comes again, and the keys that decide in its place where they are there."""
LISTS = (*ENTRIES, *CYCLES, *RUNS, *NUMBERS, *LEADING)
"""What is cut and joined with the layers, so that it may differ between models."""


@dataclass(frozen=True)
class Layered:
    """A model whose layers are taken: what it is called, its config, and how many layers it has."""

    ref: str
    config: dict[str, Any]
    depth: int


def stacked_config(giver: Layered, order: Sequence[tuple[Layered, int]]) -> dict[str, Any]:
    """The donor's config with the depth of a new stack, and what it says of layers put together as the layers are.

    Args:
        giver: the donor.
        order: every layer of the stack: its model, and its number there.

    Raises:
        IsomergeError: a config that does not state its depth, a key that one model lacks, or a rule by which the layers'
            new numbers would make other layers of them.
    """
    config, ref = dict(giver.config), giver.ref
    keys = [key for key in DEPTH_KEYS if config.get(key) == giver.depth]
    listed = not any(key in config for key in DEPTH_KEYS) and any(
        isinstance(config.get(key), (list, str)) and len(config[key]) == giver.depth for key in ENTRIES
    )
    if not keys and not listed:
        raise IsomergeError(
            f"{ref}: config.json does not say that there are {giver.depth} layers ({', '.join(DEPTH_KEYS)}), so the "
            "number of layers of the stack cannot be written"
        )
    config |= dict.fromkeys(keys, len(order))
    for key in ENTRIES:
        if isinstance(config.get(key), list):
            config[key] = [_entry(model, key, layer) for model, layer in order]
        elif isinstance(config.get(key), str):
            config[key] = "".join(_entry(model, key, layer) for model, layer in order)
        elif isinstance(config.get(key), dict):
            mine = [(model.config.get(key) or {}).get(str(layer)) for model, layer in order]
            config[key] = {str(number): entry for number, entry in enumerate(mine) if entry is not None}
    for key in (*CYCLES, *RUNS):
        if isinstance(config.get(key), list):
            entries = [_entry(model, key, layer) for model, layer in order]
            config[key] = [[[entry], 1] for entry in entries] if key in RUNS else entries
    for key in NUMBERS:
        if isinstance(config.get(key), list):
            config[key] = [n for n, (model, layer) in enumerate(order) if layer in (model.config.get(key) or ())]
    _set_leading(config, giver, order)
    _check_periods(config, order)
    _set_windows(config, giver, len(order))
    return config


def _entry(model: Layered, key: str, layer: int) -> Any:
    """What a model's config says of one layer."""
    values = model.config.get(key)
    if key in RUNS and isinstance(values, list):
        values = [entry for entries, times in values for _ in range(times) for entry in entries]
    if key in CYCLES and isinstance(values, list) and values:
        return values[layer % len(values)]
    if not isinstance(values, (list, str)) or layer >= len(values):
        raise IsomergeError(f"{model.ref}: config.json has no {key} for layer {layer}, as the donor's has; add it")
    return values[layer]


def _set_leading(config: dict[str, Any], giver: Layered, order: Sequence[tuple[Layered, int]]) -> None:
    """Count the dense layers in front of the stack; refuse those that come after others, which a count cannot say."""
    for key in LEADING:
        if not isinstance(config.get(key), int):
            continue
        dense = [layer < (model.config.get(key) or 0) for model, layer in order]
        count = sum(dense)
        if all(dense[:count]):
            config[key] = count
        elif not isinstance(config.get("mlp_layer_types"), list):
            raise IsomergeError(
                f"{giver.ref}: config.json says by {key} how many of the first layers are dense, and this stack has dense layers "
                "after others; choose slices with dense layers in front alone"
            )


def _check_periods(config: dict[str, Any], order: Sequence[tuple[Layered, int]]) -> None:
    """Refuse layers that would become others by their new numbers."""
    for key, instead in PERIODS.items():
        if any(config.get(name) is not None for name in instead):
            continue
        for number, (model, layer) in enumerate(order):
            period = model.config.get(key)
            if isinstance(period, int) and period > 1 and (number - layer) % period:
                raise IsomergeError(
                    f"{model.ref}: config.json says by {key} = {period} and a layer's number what it is, and slices make layer "
                    f"{number} of layer {layer}; choose slices that move layers by multiples of {period}"
                )


def _set_windows(config: dict[str, Any], giver: Layered, depth: int) -> None:
    """The layers from ``max_window_layers`` on attend to a window, where no list says it."""
    windows = config.get("max_window_layers")
    if isinstance(windows, int) and windows >= giver.depth:
        config["max_window_layers"] = max(windows, depth)
    elif windows is not None and config.get("use_sliding_window") and "layer_types" not in config:
        raise IsomergeError(
            f"{giver.ref}: config.json gives layers from {windows} on a sliding window by their number, which slices change; "
            "write layer_types into it"
        )
