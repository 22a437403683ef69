"""Constructors of tiny models that choose the keys they see, with experts, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_draws import drawn_numbers, drawn_words
from toy_experts import LATENT
from toy_languages import KNOWN
from toy_seeing import GRID, IMAGE, TEXT, TOWER

Inputs = dict[str, torch.Tensor]
CHOOSING: dict[str, Any] = {"index_topk": 4, "index_head_dim": 10, "index_n_heads": 3}
LARGE: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k not in ("q_lora_rank", "n_group", "topk_group")}, **KNOWN, **CHOOSING, "num_hidden_layers": 4,
    "no_rope_layers": [1, 0, 1, 1], "indexer_types": ["full", "full", "shared", "full"], "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
LARGE_WHOLE: dict[str, Any] = {
    "text_config": LARGE, "vision_config": {**TOWER, "model_type": "pixtral", "num_hidden_layers": 2}, "image_token_index": IMAGE, "multimodal_projector_bias": True,
}  # fmt: skip

MINIMAX: dict[str, Any] = {
    **TEXT, **KNOWN, "num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.6}, "intermediate_size": 10, "shared_intermediate_size": 14, "dense_intermediate_size": 20,
    "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 0.5, "mlp_layer_types": ["dense", "sparse"],
    "layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 3, "index_head_dim": 9, "index_block_size": 2, "index_topk_blocks": 2,
}  # fmt: skip
MINIMAX_WHOLE: dict[str, Any] = {
    "text_config": MINIMAX, "vision_config": {**TOWER, "hidden_size": 64, "num_attention_heads": 4}, "projector_hidden_size": 36, "image_token_index": IMAGE, "video_token_index": 64,
}  # fmt: skip

HUNYUAN: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k not in ("n_group", "topk_group", "first_k_dense_replace")}, **KNOWN, **CHOOSING, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "indexer_types": ["full", "full", "shared"], "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 3, "swiglu_limit": 0.5, "index_head_dim": 9,
}  # fmt: skip

GLM5: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k not in ("n_group", "topk_group", "first_k_dense_replace", "qk_rope_head_dim")}, **KNOWN, **CHOOSING, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"], "indexer_types": ["full", "full", "shared"], "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 3, "swiglu_limit": 0.5,
    "index_kpool": 2, "linear_head_dim": 8, "linear_num_heads": 3,
}  # fmt: skip
GLM5_WHOLE: dict[str, Any] = {
    "text_config": GLM5, "vision_config": {**GRID, "hidden_size": 60, "intermediate_size": 44, "out_hidden_size": 48, "projection_intermediate_size": 28, "swiglu_limit": 0.5},
    "image_token_id": IMAGE, "video_token_id": 64, "image_start_token_id": 63, "image_end_token_id": 62, "video_start_token_id": 61, "video_end_token_id": 66,
}  # fmt: skip

DOCLING: dict[str, Any] = {
    "text_config": {**{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "num_hidden_layers": 2}, "image_token_id": IMAGE, "pad_token_id": 0,
    "vision_config": {**TOWER, "image_size": 16, "patch_size": 4, "scale_factor": 4, "out_hidden_size": 48, "deepstack_visual_indexes": [0]},
}  # fmt: skip


def _docling(*, fine: bool) -> Any:
    eye = {**DOCLING["vision_config"], "use_fine_route": fine}
    return tf.GraniteDoclingForConditionalGeneration(tf.GraniteDoclingConfig(**{**DOCLING, "vision_config": eye}))


def _glm5() -> Any:
    return tf.Glm5NextForConditionalGeneration(tf.Glm5NextConfig(**GLM5_WHOLE))


def _hunyuan(**changes: Any) -> Any:
    return tf.HYV4ForCausalLM(tf.HYV4Config(**{**HUNYUAN, **changes}))


def _minimax(**changes: Any) -> Any:
    config = tf.MiniMaxM3VLConfig(**{**MINIMAX_WHOLE, "text_config": {**MINIMAX, **changes}})
    return tf.MiniMaxM3SparseForConditionalGeneration(config)


def _large(**changes: Any) -> Any:
    config = tf.MistralLarge4Config(**{**LARGE_WHOLE, "text_config": {**LARGE, **changes}})
    return tf.MistralLarge4ForConditionalGeneration(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm, or softmax, is computed
# in float32.
SPARSE: dict[str, tuple[Callable[[], Any], float]] = {
    "mistral_large4": (_large, 1e-5),
    "hy_v4": (_hunyuan, 1e-5),
    "hy_v4-groups": (lambda: _hunyuan(attention_bias=True, n_group=2, topk_group=1), 1e-5),
    "glm5_next": (_glm5, 1e-5),
    "granite_docling": (lambda: _docling(fine=False), 1e-5),
    "granite_docling-fine": (lambda: _docling(fine=True), 1e-5),
    "minimax_m3_vl": (_minimax, 1e-5),
    "minimax_m3_vl-one": (lambda: _minimax(index_n_heads=1), 1e-5),
}


def _sized(_: Any, rng: torch.Generator) -> Inputs:
    """Images whose sizes are told, of which four patches at once are merged."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3),
    }  # fmt: skip


def _in_cubes(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches of two frames, all in a row."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 48, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


def _tiled(config: Any, rng: torch.Generator) -> Inputs:
    """A tile for each text, by the fine path where there is one."""
    fine = config.vision_config.use_fine_route
    ways = {"tile_fine_mask": torch.ones(3, dtype=torch.bool)} if fine else {}
    return {
        **ways, "input_ids": drawn_words(rng, 4 if fine else 1), "pixel_values": drawn_numbers(rng, 3, 1, 3, 16, 16),
        "pixel_attention_mask": torch.ones(3, 1, dtype=torch.bool),
    }  # fmt: skip


SPARSE_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "mistral_large4": _sized,
    "granite_docling": _tiled,
    **dict.fromkeys(["minimax_m3_vl", "glm5_next"], _in_cubes),
}
"""By model type: how its inputs are made."""

CONVERTED_SPARSE = [name for name in SPARSE if "docling" not in name]
"""Those that transformers stores otherwise than it computes with them."""
