"""The forms in which ``config.json`` says something of single layers: each is read as one entry for every layer, and written.

transformers has no one form for it: lists with one entry for every layer, strings with one letter for each, mappings and
lists of layers' numbers, runs, and counts of the first. Which key has which form is the same in all architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Form:
    """How values of a key say something of every layer."""

    read: Callable[[Any, int], list[Any] | None]
    """The entries of a value for so many layers; None of a value that says nothing of single layers."""
    write: Callable[[list[Any], Any], Any]
    """The value with such entries that is of the kind of another value."""


def _read_each(value: Any, depth: int) -> list[Any] | None:
    """A list or letters with one entry for every layer, or a mapping of some layers' by number; else it is of all layers."""
    if isinstance(value, dict):
        return [value.get(str(layer)) for layer in range(depth)]
    return list(value) if isinstance(value, (list, tuple, str)) else None


def _write_each(entries: list[Any], like: Any) -> Any:
    if isinstance(like, dict):
        return {str(number): entry for number, entry in enumerate(entries) if entry is not None}
    return "".join(entries) if isinstance(like, str) else entries


def _read_cycle(value: Any, depth: int) -> list[Any] | None:
    """A list that begins again after its last entry."""
    return [value[layer % len(value)] for layer in range(depth)] if isinstance(value, list) and value else None


def _read_runs(value: Any, _depth: int) -> list[Any] | None:
    """Pairs of some entries and how often they come."""
    if not isinstance(value, list):
        return None
    return [entry for entries, times in value for _ in range(times) for entry in entries]


def _read_numbers(value: Any, depth: int) -> list[Any] | None:
    """The numbers of some layers."""
    return [layer in value for layer in range(depth)] if isinstance(value, (list, tuple)) else None


def _read_leading(more: int, value: Any, depth: int) -> list[Any] | None:
    """How many of the first layers are of a kind, or the last of them where it is one ``more``."""
    return [layer < value + more for layer in range(depth)] if type(value) is int and value >= 0 else None


def _write_leading(more: int, entries: list[Any], like: Any) -> Any:
    """The count; what it was where layers of the kind come after others, which a count cannot say."""
    count = sum(entries)
    return count - more if all(entries[:count]) and count >= more else like


EACH = Form(_read_each, _write_each)
CYCLE = Form(_read_cycle, lambda entries, _: entries)
RUNS = Form(_read_runs, lambda entries, _: [[[entry], 1] for entry in entries])
NUMBERS = Form(_read_numbers, lambda entries, _: [number for number, entry in enumerate(entries) if entry])
LEADING = Form(partial(_read_leading, 0), partial(_write_leading, 0))
LAST = Form(partial(_read_leading, 1), partial(_write_leading, 1))

DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")
"""How many layers there are."""
FORMS = {
    "layer_types": EACH,
    "mlp_layer_types": EACH,
    "layers_block_type": EACH,
    "attention_layers": EACH,
    "attn_type_list": EACH,
    "no_rope_layers": EACH,
    "hybrid_override_pattern": EACH,
    "hybrid_layer_pattern": EACH,
    "indexer_types": EACH,
    "layer_rope_theta": EACH,
    "attention_window": EACH,
    "activation_sparsity_pattern": EACH,
    "intermediate_size": EACH,
    "num_attention_heads_per_layer": EACH,
    "per_layer_config": EACH,
    "block_types": CYCLE,
    "attention_types": RUNS,
    "mlp_only_layers": NUMBERS,
    "attn_layer_indices": NUMBERS,
    "moe_layers": NUMBERS,
    "full_attn_idxs": NUMBERS,
    "hybrid_layer_ids": NUMBERS,
    "first_k_dense_replace": LEADING,
    "num_dense_layers": LEADING,
    "moe_layer_start_index": LEADING,
    "max_window_layers": LEADING,
    "moe_layer_end_index": LAST,
}
"""What is cut and joined with the layers, so that it may differ between models."""


def entries(config: Mapping[str, Any], key: str, depth: int) -> list[Any] | None:
    """What a key says of every layer; None where it says nothing of single ones."""
    return FORMS[key].read(config.get(key), depth)


def depth_keys(config: Mapping[str, Any], depth: int) -> list[str]:
    """The keys that state so many layers: of their number, or, where a config has none of it, with an entry for each."""
    if any(key in config for key in DEPTH_KEYS):
        return [key for key in DEPTH_KEYS if config.get(key) == depth]
    lists = [key for key in FORMS if FORMS[key] is EACH and isinstance(config.get(key), (list, str))]
    return [key for key in lists if len(config[key]) == depth]
