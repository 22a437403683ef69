"""Tiny configs of transformers in stages, such as Swin and SegFormer: lists with one entry a stage, each of which
sees a coarser grid than the last one and is as wide, or wider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isomerge.discovery.shrinking import DERIVED, Scale

WINDOW, PATCH, STRIDE = 2, 2, 2
SWIN = ("depths", "num_heads")
SEGFORMER = ("depths", "num_attention_heads", "hidden_sizes", "patch_sizes", "strides", "mlp_ratios")
"""Keys of lists with an entry a stage."""
GRID = 4
"""Patches across, where all stages see one grid: more than a convolution of SegFormer's sees at once."""
RATIO = 1.5
"""Neurons by the width of their stage: as many by the head of a specimen as others have."""


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
    return small | (_doubling(small, scale) if _are_lists(config, SWIN) else _listed(small, scale))


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


def _listed(config: dict[str, Any], scale: Scale) -> dict[str, Any]:
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
