"""What ``config.json`` says of single layers, and that each layer is what it was where slices give it another
number.

A config says it in forms that are cut and joined as the layers are, each read as one entry for every layer, and
written. transformers has no one form for it: lists with one entry for every layer, strings with one letter for
each, mappings and lists of layers' numbers, runs, and counts of the first. Which key has which form is the same in
all architectures.

Or a config says it by rules of the number: every third layer attends to all. The result of a rule is asked of
transformers where it knows the type; it is written out where transformers stores it in one of these forms, and else
must be at the new number what it was at the old."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from isomerge.config.agreement import read_by_transformers
from isomerge.config.config_parts import group_of, with_values
from isomerge.config.keys import DEPTHS
from isomerge.errors import IsomergeError
from isomerge.records import Json


@dataclass(frozen=True)
class Form:
    """How values of a key say something of every layer."""

    read: Callable[[Any, int], list[Any] | None]
    """The entries of a value for so many layers; None of a value that says nothing of single layers."""
    write: Callable[[list[Any], Any], Any]
    """The value with such entries that is of the kind of another value."""


def _read_each(value: Any, depth: int) -> list[Any] | None:
    """A list or letters with one entry for every layer, or a mapping of some layers' by number; else it is of all
    layers."""
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
    """The keys that state so many layers: of their number, or, where a config has none of it, with an entry for
    each."""
    if any(key in config for key in DEPTHS):
        return [key for key in DEPTHS if config.get(key) == depth]
    lists = [key for key in FORMS if FORMS[key] is EACH and isinstance(config.get(key), (list, str))]
    return [key for key in lists if len(config[key]) == depth]


PERIODS = {
    "attn_layer_period": ("layers_block_type", "layer_types"),
    "expert_layer_period": ("layers_num_experts",),
    "decoder_sparse_step": ("mlp_layer_types",),
    "moe_layer_freq": ("mlp_layer_types",),
    "moe_layer_interval": ("mlp_layer_types",),
    "interleave_moe_layer_step": ("moe_layers",),
    "no_rope_layer_interval": ("no_rope_layers",),
    "full_attention_interval": ("layer_types",),
    "sliding_window_pattern": ("layer_types",),
    "global_attn_every_n_layers": ("layer_types",),
}
"""After how many layers a kind comes again, and the lists that decide in its place where they are known."""
DECIDED = PERIODS | {
    "first_k_dense_replace": ("mlp_layer_types",),
    "num_dense_layers": ("mlp_layer_types",),
    "moe_layer_start_index": ("mlp_layer_types",),
    "moe_layer_end_index": ("mlp_layer_types",),
    "max_window_layers": ("layer_types",),
    "full_attn_idxs": ("layer_types",),
}
"""All that lists decide in its place."""
DEPTH_SCALE = "scale_depth"
"""What layers add is divided by the root of their number after it is multiplied by this (MiniCPM): it goes with
that root."""
READ = ("layers_num_experts", "kv_sharing_modes")
"""What transformers' configs make of other keys, with an entry for every layer."""


@dataclass(frozen=True)
class Seen:
    """A config as transformers reads it."""

    values: Mapping[str, Any]
    """What it says of layers, by key or by a name that transformers has for it."""
    stored: Mapping[str, Any]
    """What transformers would write into config.json."""


@dataclass(eq=False)
class Layered:
    """A model whose layers are taken."""

    ref: str
    """What it is called in messages."""
    whole: Mapping[str, Any]
    """The ``config.json``."""
    depth: int
    kinds: Mapping[int, frozenset[Any]]
    """The kinds of tensors that every layer has."""
    numbered: Mapping[str, Sequence[Any]]
    """What layers are by their numbers alone (see `isomerge.symmetry.language.spec.Spec.numbered`)."""
    group: tuple[str, ...] = ()
    """The way to the group of keys that is of the layers, as ``text_config``; empty where it is the whole."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The keys that are of the layers."""
        return group_of(self.whole, self.group)

    @cached_property
    def seen(self) -> Seen:
        """What transformers makes of these."""
        return seen_by_transformers(self.whole, self.group) or Seen(self.config, {})

    @cached_property
    def said(self) -> dict[str, list[Any]]:
        """What is said of every layer."""
        return _said(self.seen.values, self.depth)

    def all_said(self, layer: int) -> str:
        """What is said of a layer, and what its number makes it: equal for layers of which the same is."""
        return repr([(key, said[layer : layer + 1]) for key, said in (*self.said.items(), *self.numbered.items())])

    def entry(self, key: str, layer: int, like: Any) -> Any:
        """What a key, whose value is such a one in another model, says of a layer here.

        Raises:
            IsomergeError: there is no such key, or its list is too short.
        """
        config = self.config if self.config.get(key) is not None else self.seen.stored
        values = entries(config, key, self.depth)
        if values is None and (isinstance(like, dict) or FORMS[key] is NUMBERS):
            return None
        if values is None or layer >= len(values):
            raise IsomergeError(
                f"{self.ref}: config.json has no {key} for layer {layer}, as the donor's has; add it"
            )
        return values[layer]


Order = Sequence[tuple[Layered, int]]
"""The layers of a new stack: whose, and by which number there."""


def placed(config: Mapping[str, Any], group: Sequence[str], keys: Mapping[str, Any]) -> Json:
    """A config with other keys in one of its groups."""
    return with_values(config, {tuple(group): keys}) if group else dict(keys)


def read_group(config: Mapping[str, Any], group: Sequence[str]) -> Any:
    """The configuration object that transformers makes of a group of a config's keys; of a config that is flat
    where transformers has groups (Qwen2-VL's of older days), that of the language model. Raises whatever its class
    does."""
    real = read_by_transformers(config)
    for key in group:
        real = getattr(real, key)
    return real if group or any(key in real.to_dict() for key in DEPTHS) else real.get_text_config()


def seen_by_transformers(config: Mapping[str, Any], group: Sequence[str] = ()) -> Seen | None:
    """What transformers makes of a group of a config's keys; None where it does not know the type, or refuses the
    config."""
    try:
        real = read_group(config, group)
        config, stored = group_of(config, group), real.to_dict()
        made = {key: getattr(real, key, None) for key in (*FORMS, *PERIODS, *READ)}
    except Exception:  # of a config that it refuses, each class raises what it likes
        return None
    return Seen({**config, **{key: value for key, value in made.items() if value is not None}}, stored)


def _said(config: Mapping[str, Any], depth: int) -> dict[str, list[Any]]:
    """What is said of every layer: by lists, and by rules that no list decides."""
    said_of = {key: said for key in FORMS if (said := entries(config, key, depth)) is not None}
    said_of |= {key: list(config[key]) for key in READ if config.get(key) is not None}
    if not config.get("use_sliding_window"):
        said_of.pop("max_window_layers", None)
    for key in PERIODS:
        if type(period := config.get(key)) is int and period > 1:
            said_of[key] = [(layer % period, period) for layer in range(depth)]
    return {
        key: said for key, said in said_of.items() if not any(other in said_of for other in DECIDED.get(key, ()))
    }


def stacked_config(giver: Layered, order: Order, keys: Collection[str] = ()) -> Json:
    """The donor's config with the depth of a new stack, and what it says of layers put together as the layers are.

    Args:
        giver: the donor.
        order: every layer of the stack: its model, and its number there.
        keys: what says the depth; those of `depth_keys` where none are given.

    Raises:
        IsomergeError: a config that does not state its depth, a key that one model lacks, or layers that would be
            others at their new numbers.
    """
    if not (keys := keys or depth_keys(giver.config, giver.depth)):
        raise IsomergeError(
            f"{giver.ref}: config.json does not say that there are {giver.depth} layers ({', '.join(DEPTHS)}), so "
            "the number of layers of the stack cannot be written"
        )
    if all(model is giver for model, _ in order) and [layer for _, layer in order] == [*range(giver.depth)]:
        return dict(giver.config)
    depth: Json = {key: len(order) for key in keys if key not in FORMS}
    if isinstance(scale := giver.config.get(DEPTH_SCALE), (int, float)):
        depth[DEPTH_SCALE] = scale * (len(order) / giver.depth) ** 0.5
    config = _joined(giver, order, ()) | depth
    changes = list(_changed(giver, order, config))
    rules = {key for key, *_ in changes if config.get(key) is None and key in giver.seen.stored}
    if rules:
        config = _joined(giver, order, rules) | depth
        changes = list(_changed(giver, order, config))
    if changes:
        raise IsomergeError(_sentence(*changes[0]))
    _check_kinds(giver, order)
    return config


def _joined(giver: Layered, order: Order, rules: Collection[str]) -> Json:
    """The donor's config with what it says of layers, and what it makes of some rules, put together as the layers
    are."""
    config = dict(giver.config)
    for key, form in FORMS.items():
        like = giver.seen.stored[key] if key in rules else config.get(key)
        if form.read(like, giver.depth) is not None:
            config[key] = form.write([model.entry(key, layer, like) for model, layer in order], like)
    return config


Change = tuple[str, Layered, int, int, Any, Any]
"""A key, a model, its layer, the layer's new number, and what the key says of it there and here."""


def _changed(giver: Layered, order: Order, config: Mapping[str, Any]) -> Iterator[Change]:
    """Every property of a layer that its new index would change."""
    seen = seen_by_transformers(placed(giver.whole, giver.group, config), giver.group)
    if seen is None and giver.seen.stored:
        raise IsomergeError(
            f"{giver.ref}: transformers reads its config.json, but not that of the slices, in which layers have "
            "other numbers; choose slices that keep layers at their places"
        )
    now = _said(seen.values if seen is not None else config, len(order))
    for number, (model, layer) in enumerate(order):
        for key, was in model.said.items():
            entry = now[key][number : number + 1] if key in now else []
            one_kind = all(x == was[0] for x in was)
            if was[layer : layer + 1] != entry and (key in now or not one_kind):
                yield key, model, layer, number, (was[layer : layer + 1] or [None])[0], (entry or [None])[0]


def _sentence(key: str, model: Layered, layer: int, number: int, was: Any, now: Any) -> str:
    """Why a layer cannot have a number, and which slices would do."""
    moved = f"{model.ref}: layer {layer} would be layer {number}, and what it is depends on its number"
    if key in PERIODS:
        period = model.seen.values[key]
        return f"{moved} ({key} = {period} in config.json): choose slices that move layers by multiples of {period}"
    if FORMS.get(key) in (LEADING, LAST):
        return (
            f"{moved} (config.json counts the first layers by {key}): choose slices that keep such layers in front"
        )
    return (
        f"{moved} (by config.json's rules, {key} is {now} there and not {was}): choose slices that keep such "
        "layers at their places"
    )


def check_numbered(whole: Layered, order: Order) -> None:
    """Refuse layers that their spec makes others at their new numbers.

    Args:
        whole: the new stack.
        order: every layer of it: its model, and its number there.

    Raises:
        IsomergeError: the first such layer.
    """
    for reason, now in whole.numbered.items():
        for number, (model, layer) in enumerate(order):
            if model.numbered[reason][layer] != now[number]:
                raise IsomergeError(
                    f"{model.ref}: layer {layer} of {model.depth} would be layer {number} of {whole.depth}, and "
                    f"what it is depends on that ({reason}): choose slices that keep such layers at their places"
                )


def _check_kinds(giver: Layered, order: Order) -> None:
    """Refuse layers whose tensors are not those of the layer of their new number, where nothing says which they
    have."""
    every = {id(model): model for model, _ in (*order, (giver, 0))}.values()
    varied = frozenset[Any]().union(*(_varied(model) for model in every))
    kinds_of: dict[str, frozenset[Any]] = {}
    alike = [
        kinds_of.setdefault(model.all_said(layer), kinds & varied) == kinds & varied
        for model in every
        for layer, kinds in model.kinds.items()
    ]
    if all(alike):
        return
    for number, (model, layer) in enumerate(order):
        if number >= giver.depth or model.kinds[layer] & varied != giver.kinds[number] & varied:
            raise IsomergeError(
                f"{model.ref}: layer {layer} would be layer {number}, but what a layer is depends on its number "
                "(layers have other tensors, and nothing in config.json says which): choose slices that keep such "
                "layers at their places"
            )


def _varied(model: Layered) -> frozenset[Any]:
    """The kinds of tensors that some layers have and others lack."""
    kinds = list(model.kinds.values())
    return frozenset[Any]().union(*kinds) - kinds[0].intersection(*kinds)
