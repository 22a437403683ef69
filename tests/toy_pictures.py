"""Constructors of tiny models of pictures and films: towers, pairs, stages, heads that find and draw (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_towers import PIXELS, WORDS

SHAPE = {k: v for k, v in PIXELS.items() if k != "intermediate_size"}
FILM = {**{k: v for k, v in PIXELS.items() if k != "patch_size"}, "num_frames": 4, "tubelet_size": [2, 4, 4]}
TIMES = {**PIXELS, "num_frames": 3}
PIXIO = {**{k: v for k, v in SHAPE.items() if k != "num_labels"}, "mlp_ratio": 2}
MASKS = {
    "image_size": 32, "hidden_sizes": [12, 20, 36, 48], "num_attention_heads": [2, 4, 6, 8], "depths": [2, 1, 1, 1],
    "mlp_ratios": [2, 3, 2, 2], "decoder_hidden_size": 18, "sr_ratios": [4, 2, 2, 1], "num_labels": 5,
}  # fmt: skip
WINDOWS = {
    "image_size": 40, "patch_size": 2, "embed_dim": 12, "depths": [2, 1, 1, 1], "num_heads": [3, 4, 6, 8],
    "window_size": 3, "mlp_ratio": 1.5, "num_labels": 5,
}  # fmt: skip
NAMED = {**WORDS, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
LOOKED = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8,
    "patch_size": 4, "hidden_act": "relu",
}  # fmt: skip
FOUND = {"text_config": NAMED, "vision_config": LOOKED, "projection_dim": 48}
DRAWN = {
    "text_config": NAMED, "vision_config": LOOKED, "projection_dim": 20, "reduce_dim": 16, "extract_layers": [0, 1],
    "decoder_num_attention_heads": 4, "decoder_intermediate_size": 28,
}  # fmt: skip
FRAMES = {
    "text_config": NAMED, "projection_dim": 36, "prompt_layers": 2, "prompt_num_attention_heads": 4,
    "vision_config": {
        **LOOKED, "mit_hidden_size": 36, "mit_intermediate_size": 28, "mit_num_hidden_layers": 2, "mit_num_attention_heads": 3,
        "num_frames": 3,
    },
}  # fmt: skip


def _made(kind: str, head: str, **config: Any) -> Callable[[], Any]:
    return lambda: getattr(tf, f"{kind}{head}")(getattr(tf, f"{kind}Config")(**config))


# name -> (constructor, largest relative change of outputs that rounding explains). Some compute logits in float32.
PICTURES: dict[str, tuple[Callable[[], Any], float]] = {
    "vivit": (_made("Vivit", "ForVideoClassification", **FILM), 1e-9),
    "timesformer": (_made("Timesformer", "ForVideoClassification", **TIMES), 1e-9),
    "timesformer-joint": (
        _made("Timesformer", "ForVideoClassification", **TIMES, attention_type="joint_space_time", hidden_act="relu"), 1e-9,
    ),
    "pixio": (_made("Pixio", "Model", **PIXIO), 1e-9),
    "mlcd_vision_model": (_made("MLCDVision", "Model", **LOOKED), 1e-5),
    "segformer": (_made("Segformer", "ForSemanticSegmentation", **MASKS), 1e-9),
    "segformer-labels": (_made("Segformer", "ForImageClassification", **MASKS), 1e-9),
    "swin": (_made("Swin", "ForImageClassification", **WINDOWS, use_absolute_embeddings=True), 1e-9),
    "donut-swin": (_made("DonutSwin", "ForImageClassification", **WINDOWS), 1e-9),
    "swinv2": (_made("Swinv2", "ForImageClassification", **WINDOWS, hidden_act="relu"), 1e-9),
    "owlvit": (_made("OwlViT", "ForObjectDetection", **FOUND), 1e-5),
    "owlv2": (_made("Owlv2", "ForObjectDetection", **FOUND), 1e-5),
    "clipseg": (_made("CLIPSeg", "ForImageSegmentation", **DRAWN), 1e-9),
    "clipseg-complex": (
        _made("CLIPSeg", "ForImageSegmentation", **DRAWN, use_complex_transposed_convolution=True), 1e-9,
    ),
    "xclip": (_made("XCLIP", "Model", **FRAMES), 1e-9),
}  # fmt: skip

PICTURE_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Vivit": (FILM, ["Model", "ForVideoClassification"]),
    "Timesformer": (TIMES, ["Model", "ForVideoClassification"]),
    "Pixio": (PIXIO, ["Model"]),
    "MLCDVision": (LOOKED, ["Model"]),
    "Segformer": (MASKS, ["Model", "ForImageClassification", "ForSemanticSegmentation"]),
    "Swin": (WINDOWS, ["Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"]),
    "DonutSwin": (WINDOWS, ["Model", "ForImageClassification"]),
    "Swinv2": (
        {**WINDOWS, "hidden_act": "relu"},
        ["Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"],
    ),
    "OwlViT": (FOUND, ["Model", "ForObjectDetection"]),
    "OwlViTText": (NAMED, ["Model"]),
    "OwlViTVision": (LOOKED, ["Model"]),
    "Owlv2": (FOUND, ["Model", "ForObjectDetection"]),
    "Owlv2Text": (NAMED, ["Model"]),
    "Owlv2Vision": (LOOKED, ["Model"]),
    "CLIPSeg": (DRAWN, ["Model", "ForImageSegmentation"]),
    "CLIPSegText": (NAMED, ["Model"]),
    "CLIPSegVision": (LOOKED, ["Model"]),
    "XCLIP": (FRAMES, ["Model"]),
    "XCLIPText": (NAMED, ["Model"]),
    "XCLIPVision": (FRAMES["vision_config"], ["Model"]),
}
"""Families whose saved names are tried (see `test_names`): ``Config`` name, its arguments, model classes."""

PICTURE_HALF: dict[str, str | tuple[str, ...]] = {}
"""Spaces, by how their names begin, that a class without the part does not have (see `test_names`)."""

STAGES = {f"res{s}": "Perm" for s in range(4)}
CLIPS = {"text_res": "OFixingOnes", "vision_res": "Perm"}
PICTURE_STREAMS: dict[str, dict[str, str]] = {
    **{name: {"res": "OFixingOnes"} for name in ("vivit", "timesformer", "timesformer-joint")},
    **{name: {} for name in ("pixio", "mlcd_vision_model")},
    **dict.fromkeys(("segformer", "segformer-labels", "swin", "donut-swin", "swinv2"), STAGES),
    **dict.fromkeys(("owlvit", "owlv2", "xclip"), CLIPS),
    **{name: {**CLIPS, "dres": "Perm"} for name in ("clipseg", "clipseg-complex")},
}
"""The largest groups of their streams (see `test_streams`)."""

PICTURE_IDLE: set[tuple[str, str]] = set()
"""What a toy declares but cannot move (see `test_law`)."""


def _film(side: Callable[[Any], tuple[int, int]]) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    def made(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        frames, size = side(config)
        found = {"pixel_values": torch.randn((3, frames, 3, size, size), generator=rng, dtype=torch.float64)}
        if hasattr(config, "text_config"):
            found["input_ids"] = torch.randint(1, 60, (4, 11), generator=rng)
        return found

    return made


PICTURE_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    **dict.fromkeys(["vivit", "timesformer"], _film(lambda c: (c.num_frames, c.image_size))),
    "xclip": _film(lambda c: (c.vision_config.num_frames, c.vision_config.image_size)),
}
"""Inputs of those that ask for others than one picture and a text, by ``model_type`` (see `toys.inputs`)."""

PICTURE_OUTPUTS = {
    **dict.fromkeys(["pixio", "mlcd_vision_model"], ["last_hidden_state", "pooler_output"]),
    "owlvit": ["logits", "pred_boxes"],
    "owlv2": ["logits", "pred_boxes", "objectness_logits"],
    "xclip": ["logits_per_video"],
}
"""The outputs that are compared, by ``model_type``, where they are not the logits alone."""


def seen_outputs(kind: str, found: Any) -> torch.Tensor | None:
    """The outputs of a model of pictures in a row, None where its logits are all."""
    if kind not in PICTURE_OUTPUTS:
        return None
    return torch.cat(
        [found[name].double().flatten() for name in PICTURE_OUTPUTS[kind] if found.get(name) is not None]
    )
