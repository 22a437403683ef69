"""Constructors of tiny models that see: a tower over patches, a way of merging them, and a language model (see
`toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_models import CAUSAL

IMAGE = 3
"""The id of the token that stands for a piece of an image."""
TEXT: dict[str, Any] = {**CAUSAL, "pad_token_id": 0}
SECTIONS: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
GRID: dict[str, Any] = {
    "depth": 2,
    "num_heads": 5,
    "patch_size": 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}
TOWER: dict[str, Any] = {
    "hidden_size": 60,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 44,
    "image_size": 8,
    "patch_size": 2,
}


def _qwen(kind: str, text: dict[str, Any], vision: dict[str, Any]) -> Any:
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=66, tie_word_embeddings=False,
    )  # fmt: skip
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


def _mistral3() -> Any:
    config = tf.Mistral3Config(
        text_config={**TEXT, "model_type": "mistral"}, vision_config={**TOWER, "model_type": "pixtral", "head_dim": 12, "hidden_act": "silu"},
        image_token_index=IMAGE, tie_word_embeddings=False, projector_hidden_act="gelu",
    )  # fmt: skip
    return tf.Mistral3ForConditionalGeneration(config)


def _internvl(**changes: Any) -> Any:
    vision = {**TOWER, "image_size": [8, 8], "patch_size": [2, 2], "attention_bias": True, **changes}
    config = tf.InternVLConfig(
        text_config={**TEXT, "model_type": "qwen2"}, vision_config=vision, image_token_id=IMAGE, image_seq_length=4, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.InternVLForConditionalGeneration(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
SEEING: dict[str, tuple[Callable[[], Any], float]] = {
    "qwen2_vl": (
        lambda: _qwen("Qwen2VL", {**TEXT, "rope_parameters": SECTIONS}, {**GRID, "embed_dim": 60, "hidden_size": 48, "mlp_ratio": 2}), 1e-5,
    ),
    "qwen2_5_vl": (
        lambda: _qwen(
            "Qwen2_5_VL", {**TEXT, "rope_parameters": SECTIONS},
            {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8, "fullatt_block_indexes": [1]},
        ), 1e-5,
    ),
    "qwen3_vl": (
        lambda: _qwen(
            "Qwen3VL", {**TEXT, "rope_parameters": SECTIONS},
            {
                **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
        ), 1e-5,
    ),
    "mistral3": (_mistral3, 1e-5),
    "internvl": (_internvl, 1e-5),
    "internvl-normed": (lambda: _internvl(use_qk_norm=True, norm_type="rms_norm"), 1e-5),
}  # fmt: skip


MERGED = (
    "Qwen2VL",
    "Qwen2_5_VL",
    "Qwen3VL",
    "Qwen3VLMoe",
    "Qwen3_5",
    "Qwen3_5Moe",
    "Qwen4Exp",
    "Lfm3Vl",
    "QianfanOCR",
    "Mistral3",
    "InternVL",
    "Exaone4_5_",
    "Cosmos3Omni",
)
PIECES = 4
"""Tokens that stand for one image in each of these toys: 16 patches, four at once."""


def is_seeing(config: Any) -> bool:
    """Whether a config is one whose tower merges patches."""
    return type(config).__name__.removesuffix("Config") in MERGED


def seen_inputs(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Three texts with an image each; behind the first token stand the tokens of the image."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1 : 1 + PIECES] = IMAGE
    if hasattr(config.vision_config, "temporal_patch_size"):
        patches = torch.randn((3 * 16, 3 * 2 * 2 * 2), generator=rng, dtype=torch.float64)
        grid = torch.tensor([[1, 4, 4]] * 3)
        return {
            "input_ids": ids, "pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": (ids == IMAGE).int(),
        }  # fmt: skip
    pixels = torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)
    sizes = {"image_sizes": torch.tensor([[8, 8]] * 3)} if config.model_type == "mistral3" else {}
    return {"input_ids": ids, "pixel_values": pixels, **sizes}
