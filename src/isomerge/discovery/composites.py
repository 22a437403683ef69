"""Tiny configs of composites: every part made small by sizes of its own, and what the parts must agree on made
equal.

All sizes of all parts differ, so that a length still tells what an axis is, and of which part.

Models in stages, such as Swin and SegFormer, have lists with one entry a stage, each of which sees a coarser grid
than the last one and is as wide, or wider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isomerge.config.config_parts import parts_of
from isomerge.discovery.shrinking import CHOSEN, DERIVED, IMAGE, Scale, chosen, kind_of, shrunk, token

SEEN = re.compile(r"(image|video|audio|vision)\w*_token(_id|_index)?$")
"""Tokens in whose places features of another part are put: they must be met nowhere else."""
PROJECTED = re.compile(r"projection_dim|image_text_hidden_size")
"""Keys for the width of a space that two parts project into."""
PIXELS = (8, 16)
"""Sides of images: their patches can be counted, merged two by two, and have another number in either specimen."""
IMAGES = {"image_size": PIXELS, "mm_tokens_per_image": (4, 4)}
WINDOW, PATCH, STRIDE = 2, 2, 2
SWIN = ("depths", "num_heads")
SEGFORMER = ("depths", "num_attention_heads", "hidden_sizes", "patch_sizes", "strides", "mlp_ratios")
"""Keys of lists with an entry a stage."""
GRID = 4
"""Patches across, where all stages see one grid: more than a convolution of SegFormer's sees at once."""
RATIO = 1.5
"""Neurons by the width of their stage: as many by the head of a specimen as others have."""


def shrunk_whole(config: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
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


def _between(frame: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
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


def _agreed(
    real: Mapping[str, Any], small: dict[str, Any], equal: Mapping[int, int], scale: Scale, vocabulary: int
) -> dict[str, Any]:
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
        elif key in IMAGES:
            agreed[key] = IMAGES[key][scale.layers % 2]
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


def shrunk_stages(config: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """The config of a tiny model of the same class, one layer a stage.

    Args:
        config: all keys of the real config, defaults filled in.
        scale: how small.
    """
    small = {key: value for key, value in config.items() if key not in DERIVED}
    return small | (_doubling(small, scale) if _are_lists(config, SWIN) else _of_lists(small, scale))


def _doubling(config: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """Stages of which each is twice as wide as the last one (Swin): as many as layers. The first one has half of
    the heads, and no grid is whole windows: some are filled up."""
    first = max(1, scale.heads // 2)
    stages = min(scale.layers, len(config["depths"]))
    for key in ("hidden_size", "num_layers"):  # which the class makes from the others
        config.pop(key, None)
    lists = {key: value[:stages] for key, value in config.items() if _is_list_of(value, len(config["depths"]))}
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


def _of_lists(config: dict[str, Any], scale: Scale) -> dict[str, Any]:
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


def _is_list_of(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length
