"""Constructors of tiny models of the largest types that are merged, of language and of images, and their inputs
(see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_draws import drawn_numbers, drawn_words
from toy_experts import LATENT
from toy_languages import KNOWN, NEXT, SECTIONS_OF_A_PART
from toy_seeing import IMAGE, TEXT, TOWER

Inputs = dict[str, torch.Tensor]
KIMI_EYE: dict[str, Any] = {
    "hidden_size": 60, "intermediate_size": 44, "num_attention_heads": 5, "num_hidden_layers": 2, "patch_size": 2, "pos_emb_height": 6, "pos_emb_width": 6,
}  # fmt: skip
KIMI: dict[str, Any] = {
    "text_config": {**LATENT, **KNOWN, "model_type": "deepseek_v3"}, "vision_config": KIMI_EYE, "projection_hidden_size": 60, "image_token_id": IMAGE,
    "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66, "tie_word_embeddings": False,
}  # fmt: skip
AXK2: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k != "first_k_dense_replace"}, **KNOWN, "mlp_layer_types": ["dense", "sparse"], "index_topk": 4,
    "index_head_dim": 8, "index_n_heads": 2, "gated_norm_rank": 5,
}  # fmt: skip
STEP: dict[str, Any] = {
    **TEXT, **KNOWN, "num_attention_heads": 4, "num_hidden_layers": 3, "num_sliding_attention_heads": 6, "moe_intermediate_size": 20, "share_expert_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse", "sparse"], "sliding_window": 4,
    "swiglu_limits": [0.0, 0.0, 0.6], "swiglu_limits_shared": [0.0, 0.6, 0.0], "moe_router_scaling_factor": 1.5,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip
STEP_EYE: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "mlp_ratio": 0.75, "image_size": 8, "patch_size": 2, "max_position_embeddings": 16,
}  # fmt: skip

MOLMO: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "additional_vocab_size": 5, "num_hidden_layers": 2},
    "vision_config": {**TOWER, "image_size": [8, 8], "num_key_value_heads": 5, "head_dim": 12, "num_hidden_layers": 3},
    "adapter_config": {
        "vision_feature_layer": [2, 0], "hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 36, "text_hidden_size": 48,
    },
    "image_patch_id": IMAGE, "image_start_token_id": 65, "image_end_token_id": 66, "low_res_image_start_token_id": 64, "frame_start_token_id": 63, "frame_end_token_id": 62,
}  # fmt: skip

MINICPM: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "qwen3"}, "vision_config": {**TOWER, "image_size": 16, "num_hidden_layers": 3}, "insert_layer_id": 1,
    "image_token_id": IMAGE, "video_token_id": 64, "tie_word_embeddings": False,
}  # fmt: skip
CANVAS: dict[str, Any] = {
    **MINICPM, "text_config": {**NEXT, "model_type": "qwen3_5_text", "rope_parameters": SECTIONS_OF_A_PART},
    "image_start_id": 65, "image_end_id": 66, "slice_start_id": 63, "slice_end_id": 62, "newline_id": 61,
}  # fmt: skip


def _molmo(**changes: Any) -> Any:
    config = tf.Molmo2Config(**{**MOLMO, "text_config": {**MOLMO["text_config"], **changes}})
    return tf.Molmo2ForConditionalGeneration(config)


def _step(**changes: Any) -> Any:
    config = tf.Step3p7Config(
        text_config=STEP, vision_config=STEP_EYE, image_token_id=IMAGE, tie_word_embeddings=False, **changes
    )
    return tf.Step3p7ForConditionalGeneration(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm, or softmax, is computed
# in float32.
GIANTS: dict[str, tuple[Callable[[], Any], float]] = {
    "kimi_k25": (lambda: tf.Kimi_K25ForConditionalGeneration(tf.Kimi_K25Config(**KIMI)), 1e-5),
    "axk2": (lambda: tf.AXK2ForCausalLM(tf.AXK2Config(**AXK2)), 1e-5),
    "axk2-light": (
        lambda: tf.AXK2ForCausalLM(
            tf.AXK2Config(**{**AXK2, "n_group": None, "topk_group": None, "attention_bias": True})
        ),
        1e-5,
    ),
    "step3p7": (_step, 1e-5),
    "molmo2": (_molmo, 1e-5),
    "minicpmv4_6": (lambda: tf.MiniCPMV4_6ForConditionalGeneration(tf.MiniCPMV4_6Config(**MINICPM)), 1e-5),
    "minicpmv4_7": (lambda: tf.MiniCPMV4_7ForConditionalGeneration(tf.MiniCPMV4_7Config(**CANVAS)), 1e-5),
    "minicpm_ocr": (
        lambda: tf.MiniCPMOcrForConditionalGeneration(tf.MiniCPMOcrConfig(**{**MINICPM, "image_size": None})),
        1e-5,
    ),
    "molmo2-olmo": (lambda: _molmo(qk_norm_type="olmo", norm_after=True), 1e-5),
}

CONVERTED_GIANTS = [name for name in GIANTS if not name.startswith("minicpm")]
"""Those that transformers stores otherwise than it computes with them."""


def _in_squares(_: Any, rng: torch.Generator) -> Inputs:
    """Images as square patches, all in a row."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 48, 3, 2, 2), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


def _in_pixels(pieces: int) -> Callable[[Any, torch.Generator], Inputs]:
    """Images of which so many tokens stand in the text."""
    return lambda _, rng: {"input_ids": drawn_words(rng, pieces), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8)}


def _in_crops(_: Any, rng: torch.Generator) -> Inputs:
    """Images as rows of patches, of which four at once are pooled for a token."""
    pooled = torch.arange(16).reshape(4, 2, 2).permute(0, 2, 1).reshape(4, 4)
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 16, 12), "image_token_pooling": torch.cat([pooled + 16 * n for n in range(3)]),
        "image_grids": torch.tensor([[2, 2, 0, 0]] * 3), "image_num_crops": torch.tensor([1] * 3),
    }  # fmt: skip


def _packed(config: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, all in one row."""
    ids = drawn_words(rng, 16 if config.downsample_mode == "4x" else 4)
    marked = {}
    if config.model_type == "minicpmv4_7":
        ids[:, 0], ids[:, 5] = config.image_start_id, config.image_end_id
        marked = {"mm_token_type_ids": (ids == IMAGE).int()}
    return {
        **marked,
        "input_ids": ids,
        "pixel_values": drawn_numbers(rng, 1, 3, 2, 2 * 3 * 64),
        "target_sizes": torch.tensor([[8, 8]] * 3),
    }


GIANT_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "kimi_k25": _in_squares,
    "step3p7": _in_pixels(1),
    "molmo2": _in_crops,
    **dict.fromkeys(["minicpmv4_6", "minicpmv4_7", "minicpm_ocr"], _packed),
}
"""By model type: how its inputs are made."""
