"""Tiny configs of an architecture: the sizes of a real one made small, their ratios and divisibilities kept.

Symmetries do not depend on size, so a tiny random model of the same configuration class can prove them. Two sizes
are made of every config: what is an axis, a number of layers or a constant shows in what differs between the two.

Of composites every part is made small by sizes of its own, and what the parts must agree on is made equal. All
sizes of all parts differ, so that a length still tells what an axis is, and of which part. Models in stages, such
as Swin and SegFormer, have lists with one entry a stage, each of which sees a coarser grid than the last one and
is as wide, or wider.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isomerge.config.config_parts import parts_of, split
from isomerge.config.keys import LABELS
from isomerge.errors import IsomergeError
from isomerge.records import Json


@dataclass(frozen=True)
class Scale:
    """How small: the sizes of one specimen, all different so that a length tells what an axis is; also from what a
    class computes of them, such as JetMoE's heads, as many as key-value heads times experts that are asked."""

    layers: int
    heads: int
    shared: int
    """Key-value heads, where several query heads share one."""
    head: int
    width: int
    """What a model is wider than its heads together, per head, where the config chooses the head's size by
    itself."""
    neurons: int
    experts: int
    vocabulary: int
    embedding: int
    positions: int
    side: int | None = None
    """Of an image, where two or three patches across, by the number of layers, will not do."""
    linked: bool = False
    """Whether spaces between the parts of a composite are as wide as a part, where the real ones are."""
    labels: int | None = None
    """Of a classifier; where this is empty, as many as its class has by default: two."""


SCALES = (
    Scale(2, 4, 2, 16, 4, 40, 4, 131, 44, 80),
    Scale(3, 3, 3, 24, 4, 56, 8, 149, 52, 96),
)
Change = Callable[[Scale], Scale]
# What is tried next where a class refuses these: heads in numbers divisible by eight, widths that are the heads'
# own, spaces between
# parts that are as wide as one of them.
FALLBACKS: tuple[Change, ...] = (
    lambda scale: replace(scale, width=0),
    lambda scale: replace(scale, heads=8),
    lambda scale: replace(scale, linked=True),
)
APART = (0, 4, -4, 12)
DERIVED = ("out_features", "out_indices", "stage_names", "_out_features", "_out_indices", *LABELS)
"""Keys that a config makes from others: left out, so that the tiny config makes its own."""
# The words by which configs of transformers call their sizes; a key is taken for the first kind that fits.
KINDS = {
    "layers": r"(\w+_)?n?(um)?_?(hidden_|encoder_|decoder_)?(layers?|blocks)|n_layers?|depth",
    "shared": r"(num|n)_(key_value|kv)_heads|n_head_kv|multi_query_group_num",
    "heads": r"(\w+_)?(num|n)_(attention_)?heads?|((encoder|decoder)_)?attention_heads",
    "rotary": r"rotary_dim|qk_rope_head_dim",
    "head": r"head_dim|d_kv|kv_channels|attention_head_size|v_head_dim|qk_nope_head_dim|d_head",
    "neurons": r"\w*intermediate_size|(\w+_)?ffn_dim|d_ff|n_inner|ffn_hidden_size|d_inner|hidden_dim|dim_feedforward",
    "picked": r"num_experts_per_tok(en)?|moe_topk|moe_top_k|moe_k|top_k_experts",
    "experts": r"num_(local_)?experts|n_routed_experts|moe_num_experts",
    "width": r"(decoder_)?hidden_size|d_model|n_embd|dim|emb_dim|embed_dim|hidden_dim|model_dim",
    "latent": r"(kv|q)_lora_rank",
    "embedding": r"embedding_size|word_embed_proj_dim|d_embed",
    "vocabulary": r"((en|de)coder_|src_|tgt_)?vocab_size",
    "positions": r"max_\w*position\w*|position_buckets|n_positions|n_ctx|max_sequence_length|max_seq_len",
}
_TOKENS = re.compile(r"(pad|bos|eos|sep|cls|mask|unk|decoder_start|\w*)_token_id$")
WINDOWS = re.compile(r"(sliding|attention|local)_window(_size)?|window_size")
INTERVALS = re.compile(r"\w*(interval|period|_pattern|layer_step|every_n\w*|layer_freq)")
"""Every how many layers one is of another kind: two, so that specimens of few layers have both."""
CHOSEN = re.compile(r"_index(es)?$|_indices$|feature_layers?$")
"""Keys that list layers by their numbers, from the end where they are negative."""
FEW = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
"""Experts in two groups, of which one is asked; layers without experts: one, so that the next ones have some."""
IMAGE = {"image_size": (8, 12), "patch_size": (4, 4), "tubelet_size": (2, 2), "num_frames": (2, 2)}


def kind_of(key: str, config: Mapping[str, Any]) -> str | None:
    """What a key of a config is a size of; None where it is none that is known."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    part, base = split(key)
    # DistilBERT's manner: with a key `dim` for the width, `hidden_dim` counts neurons
    if base == "hidden_dim":
        return "neurons" if f"{part}dim" in config else "width"
    return next((kind for kind, words in KINDS.items() if re.fullmatch(words, base)), None)


def shrunk(config: Mapping[str, Any], scale: Scale) -> Json:
    """The config of a tiny model of the same class.

    Args:
        config: all keys of the real config, defaults filled in (``PretrainedConfig.to_dict``).
        scale: how small.

    Raises:
        IsomergeError: no width or no heads are found among the keys.
    """
    kinds = {key: kind for key in config if (kind := kind_of(key, config))}
    width, heads = (_first(kinds, config, kind) for kind in ("width", "heads"))
    if not width:
        raise IsomergeError(
            "config.json: no key for the width of the model is known (hidden_size, d_model, n_embd, dim): its "
            "parts cannot be made small"
        )
    shared = _first(kinds, config, "shared")
    sizes = _lengths(config, kinds, scale, width, heads or 1, shared)
    sizes |= _filled(config, kinds, sizes)
    small = {key: value for key, value in {**config, **sizes}.items() if key not in DERIVED}
    for key, value in config.items():
        if key in sizes or value is None or key in DERIVED:
            continue
        if _TOKENS.search(key):
            small[key] = token(value, scale.vocabulary)
        elif key in IMAGE:
            side = scale.side if key == "image_size" and scale.side else IMAGE[key][scale.layers % 2]
            small[key] = side if isinstance(value, int) else [side] * len(value)
        elif key in FEW and isinstance(value, int):
            small[key] = min(value, FEW[key])
        elif INTERVALS.fullmatch(key) and isinstance(value, int):
            small[key] = min(value, 2)
        elif WINDOWS.fullmatch(key) and isinstance(value, int):
            small[key] = min(value, 64)
        elif isinstance(value, int) and not isinstance(value, bool) and value in (width, 4 * width):
            small[key] = value // width * _first(kinds, small, "width")
        elif CHOSEN.search(key) and isinstance(value, (list, tuple)):
            small[key] = chosen(list(value), scale.layers)
        elif isinstance(value, Mapping) and "mrope_section" in value:
            pairs = scale.head // 2  # how many turn with time, height and width
            first = (pairs // 4, (pairs - pairs // 4) // 2)
            small[key] = {**value, "mrope_section": [*first, pairs - sum(first)]}
        elif isinstance(value, (list, tuple)):
            small[key] = _per_layer(value, config, kinds, scale)
    return small


def _filled(config: Mapping[str, Any], kinds: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, int]:
    """What a config leaves open and not every class fills in: key-value heads, then as many as heads, and how many
    experts are asked."""
    open_keys = [split(key) for key, value in config.items() if value is None]
    filled = {}
    for part, base in open_keys:
        if re.fullmatch(KINDS["shared"], base) and "heads" in kinds.values():
            filled[f"{part}{base}"] = _first(kinds, sizes, "heads")
        if re.fullmatch(KINDS["picked"], base) and "experts" in kinds.values():
            filled[f"{part}{base}"] = 2
    return filled


def _first(kinds: Mapping[str, str], config: Mapping[str, Any], kind: str) -> int:
    return next((config[key] for key, own in kinds.items() if own == kind), 0)


def _lengths(
    config: Mapping[str, Any], kinds: Mapping[str, str], scale: Scale, width: int, heads: int, shared: int
) -> dict[str, int]:
    """The small value of every key that is a size."""
    ratio = min(3, heads // shared) if shared and heads % shared == 0 else 1
    kv = 1 if shared == 1 and heads > 1 else scale.shared if ratio > 1 else scale.heads
    count = kv * ratio if shared > 1 else scale.heads
    grouped = [
        v for k, v in config.items() if k.endswith("_groups") and isinstance(v, int) and v > 1 and heads % v == 0
    ]
    if grouped and scale.heads % max(grouped):
        scale = replace(scale, heads=2 * max(grouped))
        kv, count = (scale.heads, scale.heads) if not shared else (kv, count)
    stated = _first(kinds, config, "head")
    free = bool(stated) and any(key in ("head_dim", "d_kv") for key in kinds)
    small_width = count * (scale.head + (scale.width if free else 0))
    wider = min(8, small_width // 4)
    values = {
        "layers": scale.layers,
        "shared": kv,
        "heads": count,
        "head": scale.head,
        "width": small_width,
        "neurons": scale.neurons,
        "experts": scale.experts,
        "picked": 2,
        "vocabulary": scale.vocabulary,
        "embedding": scale.embedding,
        "latent": max(scale.embedding - 18, scale.head + wider * ("v_head_dim" in config)),
        "wider": wider,
        "positions": scale.positions,
    }
    kinds_seen: list[str] = []
    lengths = {}
    for key, kind in kinds.items():
        if config[key] > 0:
            lengths[key] = _length(key, kind, config, values, (width, heads, stated), kinds_seen)
            kinds_seen.append(kind)
    return lengths


def _length(
    key: str,
    kind: str,
    config: Mapping[str, Any],
    values: Mapping[str, int],
    real: tuple[int, int, int],
    before: list[str],
) -> int:
    """The small value of one key: most have that of their kind, equal ones stay equal, others are told apart."""
    width, heads, stated = real
    value = config[key]
    if kind == "embedding" and value == width:
        return values["width"]
    if kind == "neurons":  # one length for each key: which key an axis follows must show
        return values[kind] + APART[before.count(kind) % len(APART)]
    if kind == "latent" or key == "v_head_dim":  # no latent is wider than the stream that it reads
        return values[kind] + values["wider"] * (key != "kv_lora_rank")
    if kind == "width" and key.startswith("decoder") and value != width:
        return 2 * values[kind]
    if kind == "heads" and key.startswith("decoder") and kind in before:
        return 2 * values[kind]
    if "qk_rope_head_dim" in config and key in ("head_dim", "qk_rope_head_dim"):  # one thing, by two names
        return values["head"]
    if kind == "rotary":
        return max(2, values["head"] * value // (stated or width // heads) // 2 * 2)
    return min(2, value) if kind == "picked" else values[kind]


def token(value: Any, vocabulary: int) -> Any:
    """A token within a small vocabulary: one that no random input has, if it was beyond."""
    if isinstance(value, list):
        return [token(part, vocabulary) for part in value]
    return value % (vocabulary - 8) if isinstance(value, int) and value >= vocabulary - 8 else value


def chosen(value: list[Any], layers: int) -> list[Any]:
    """Numbers of layers that there are: as many where some count from the end, else every second one, so that both
    kinds stay."""
    if not value or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        return value
    if min(value) < 0:
        return [max(n, -layers) if n < 0 else min(n, layers - 1) for n in value]
    return list(range(0, layers, 2)) if max(value) >= layers else value


def _per_layer(value: Any, config: Mapping[str, Any], kinds: Mapping[str, str], scale: Scale) -> Any:
    """A list with one entry per layer, cut so that its first kinds of layer remain."""
    depths = {config[key] for key, kind in kinds.items() if kind == "layers"}
    if len(value) not in depths:
        return value
    entries = list(value)
    if all(isinstance(entry, (str, int, bool)) for entry in entries):
        unlike = list(dict.fromkeys(entries))
        return [unlike[n % len(unlike)] for n in range(scale.layers)]
    return entries[: scale.layers]


SEEN = re.compile(r"(image|video|audio|vision)\w*_token(_id|_index)?$")
"""Tokens in whose places features of another part are put: they must be met nowhere else."""
PROJECTED = re.compile(r"projection_dim|image_text_hidden_size")
"""Keys for the width of a space that two parts project into."""
PIXELS = (8, 16)
"""Sides of images: their patches can be counted, merged two by two, and have another number in either specimen."""
OF_PARTS = {"image_size": PIXELS, "mm_tokens_per_image": (4, 4)}
WINDOW, PATCH, STRIDE = 2, 2, 2
SWIN = ("depths", "num_heads")
SEGFORMER = ("depths", "num_attention_heads", "hidden_sizes", "patch_sizes", "strides", "mlp_ratios")
"""Keys of lists with an entry a stage."""
GRID = 4
"""Patches across, where all stages see one grid: more than a convolution of SegFormer's sees at once."""
RATIO = 1.5
"""Neurons by the width of their stage: as many by the head of a specimen as others have."""


def shrunk_whole(config: Mapping[str, Any], scale: Scale) -> Json:
    """The config of a tiny model of the same class, also where it holds the configs of others.

    Args:
        config: all keys of the real config, defaults filled in.
        scale: how small; parts after the first one have sizes beside it.

    Raises:
        IsomergeError: no width is found among the keys of a part.
    """
    parts = parts_of(config)
    if not parts:
        return shrunk_stages(config, scale) if is_in_stages(config) else shrunk(config, scale)
    frame = {key: value for key, value in config.items() if key not in parts}
    whole = any(kind_of(key, frame) == "layers" for key in frame) and any(
        kind_of(key, frame) == "width" for key in frame
    )
    first = 1 if whole else 0
    small = {name: shrunk_whole(part, beside(scale, n)) for n, (name, part) in enumerate(parts.items(), first)}
    equal = _equal(parts, small)
    vocabulary = next((p[k] for p in small.values() for k in p if kind_of(k, p) == "vocabulary"), scale.vocabulary)
    last = next((p[k] for p in reversed(small.values()) for k in p if kind_of(k, p) == "width"), 0)
    for name, part in parts.items():
        if "projection_size" in part:  # SigLIP's texts are projected to the width of the images
            small[name]["projection_size"] = last
        small[name] = _agreed(part, small[name], equal, scale, vocabulary)
    own = shrunk(frame, scale) if whole else _between(frame, scale)
    return {**_agreed(frame, own, equal, scale, vocabulary), **small}


def _between(frame: Mapping[str, Any], scale: Scale) -> Json:
    """The keys beside the parts, where they describe no part themselves: what lies between the parts has neurons of
    its own."""
    own = {key: value for key, value in frame.items() if key not in DERIVED}
    neurons = [key for key in own if kind_of(key, frame) == "neurons"]
    return own | {key: scale.neurons + 12 * number for number, key in enumerate(neurons, 1)}


def beside(scale: Scale, number: int) -> Scale:
    """The scale of another part: no length is that of the first one in both specimens."""
    if not number:
        return scale
    return replace(
        scale,
        heads=scale.heads + 2 * number,
        shared=scale.shared + 1,
        head=scale.head - 8 if scale.head > 8 else max(2, scale.head // 2),
        neurons=max(8, scale.neurons - 4 - 8 * number),
        vocabulary=scale.vocabulary + 12 * number,
        positions=scale.positions + 4 * number,
        embedding=scale.embedding + 4 * number,
    )


def _equal(parts: Mapping[str, Mapping[str, Any]], small: Mapping[str, Mapping[str, Any]]) -> dict[int, int]:
    """What real widths and vocabularies became, by their numbers; where two parts have one, the first part's."""
    equal: dict[int, int] = {}
    for name, part in parts.items():
        for key in part:
            if kind_of(key, part) in ("width", "vocabulary") and key in small[name]:
                equal.setdefault(part[key], small[name][key])
    return equal


def _agreed(real: Mapping[str, Any], small: Json, equal: Mapping[int, int], scale: Scale, vocabulary: int) -> Json:
    """A part's small config in which lengths of other parts, tokens and images are what they are there."""
    widths = [key for key in real if kind_of(key, real) == "width"]
    main = widths[0] if "num_hidden_layers" in real or "depth" in real or "num_layers" in real else None
    whole = {k: v for k, v in real.items() if isinstance(v, int) and not isinstance(v, bool)}
    seen = sorted({v for k, v in whole.items() if SEEN.search(k)})
    agreed = dict(small)
    for key in small.keys() & real.keys() - {"projection_size"}:
        value = real[key]
        if isinstance(value, list):
            agreed[key] = _listed(key, value, small[key], scale)
        elif key not in whole:
            continue
        elif SEEN.search(key):
            agreed[key] = vocabulary - 8 + seen.index(value) % 8
        elif PROJECTED.fullmatch(key):
            space = scale.embedding - 8 if scale.embedding > 8 else scale.embedding
            agreed[key] = equal.get(value, space) if scale.linked else space
        elif key in OF_PARTS:
            agreed[key] = OF_PARTS[key][scale.layers % 2]
        elif key in IMAGE:
            continue
        elif key != main and value in equal and _follows(key, real, small, real.get(main or "")):
            agreed[key] = equal[value]
        elif value >= vocabulary and key.endswith(("_token_id", "_token_index")):
            agreed[key] = token(value, vocabulary)
    return agreed


def _listed(key: str, value: list[Any], small: Any, scale: Scale) -> Any:
    """A list of a part's config: sides of images, and numbers of layers, that the small parts have."""
    side = PIXELS[scale.layers % 2]
    if key == "image_size":
        return [side] * len(value)
    if key == "image_grid_pinpoints":
        return [[side] * 2]
    return chosen(value, scale.layers) if CHOSEN.search(key) and key not in IMAGE else small


def _follows(key: str, real: Mapping[str, Any], small: Mapping[str, Any], own: Any) -> bool:
    """Whether a number that is another part's width is meant as that width, though four of one's own may be as
    many."""
    kind = kind_of(key, real)
    return small[key] == real[key] or kind == "width" or (kind is None and real[key] != own)


def is_in_stages(config: Mapping[str, Any]) -> bool:
    """Whether a config has a list of depths, and stages as Swin's or as SegFormer's."""
    return (_are_lists(config, SWIN) and "window_size" in config) or _are_lists(config, SEGFORMER)


def shrunk_stages(config: Mapping[str, Any], scale: Scale) -> Json:
    """The config of a tiny model of the same class, one layer a stage.

    Args:
        config: all keys of the real config, defaults filled in.
        scale: how small.
    """
    small = {key: value for key, value in config.items() if key not in DERIVED}
    return small | (_doubling(small, scale) if _are_lists(config, SWIN) else _of_lists(small, scale))


def _doubling(config: Json, scale: Scale) -> Json:
    """Stages of which each is twice as wide as the last one (Swin): as many as layers. The first one has half of
    the heads, and no grid is whole windows: some are filled up."""
    first = max(1, scale.heads // 2)
    stages = min(scale.layers, len(config["depths"]))
    for key in ("hidden_size", "num_layers"):  # which the class makes from the others
        config.pop(key, None)
    whole = len(config["depths"])
    lists = {key: v[:stages] for key, v in config.items() if isinstance(v, list) and len(v) == whole}
    side = PATCH * (1 + 2**stages)
    small = lists | {
        "depths": [1] * stages,
        "num_heads": [first * 2**stage for stage in range(stages)],
        "embed_dim": first * scale.head,
        "window_size": WINDOW,
        "patch_size": PATCH,
        "image_size": side,
        "encoder_stride": PATCH * 2 ** (stages - 1),
        "mlp_ratio": RATIO,
    }
    return {key: value for key, value in small.items() if key in config}


def _of_lists(config: Json, scale: Scale) -> Json:
    """Stages whose widths a list has (SegFormer): all of them; the first half has half of the heads. All see one
    grid: with coarser ones behind it the first would take most of the time."""
    stages = len(config["depths"])
    heads = [max(1, scale.heads // (2 if 2 * stage < stages else 1)) for stage in range(stages)]
    small = {
        "depths": [1] * stages,
        "num_attention_heads": heads,
        "hidden_sizes": [count * scale.head for count in heads],
        "strides": [STRIDE] + [1] * (stages - 1),
        "patch_sizes": [
            STRIDE if patch <= stride else STRIDE + 1
            for patch, stride in zip(config["patch_sizes"], config["strides"], strict=True)
        ],
        "mlp_ratios": [2] * stages,
        "decoder_hidden_size": scale.heads * scale.head,
        "image_size": STRIDE * GRID,
        **{
            key: [min(STRIDE, n) for n in config[key]]
            for key in config
            if key.endswith("_ratios") and key[:3] != "mlp"
        },
    }
    kept = {*config, "image_size"}  # which newer configs lack
    return {key: value for key, value in small.items() if key in kept}


def _are_lists(config: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return all(isinstance(config.get(key), list) for key in keys)
