"""Constructors of tiny models of the latest types, of language and of images (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_languages import HEADS, MIXED, NEXT_MIXED, TWO
from toy_models import LAYERS
from toy_newest import ahead
from toy_seeing import GRID, IMAGE, SECTIONS, TOWER
from toy_senses import GLM, GLM_EYES, PLACED

OVIS_EYE: dict[str, Any] = {
    **TOWER,
    "vocab_size": 33,
    "num_visual_indicator_tokens": 4,
    "hidden_stride": 2,
    "qkv_bias": True,
}


def _ovis2(**changes: Any) -> Any:
    text = {**TWO, "model_type": "qwen2"}
    config = tf.Ovis2Config(
        text_config=text, vision_config={**OVIS_EYE, **changes}, image_token_id=IMAGE, visual_indicator_token_ids=[63, 64, 65, 66],
        hidden_size=48, vocab_size=67, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Ovis2ForConditionalGeneration(config)


HUNYUAN_EYE: dict[str, Any] = {
    "hidden_size": 30, "intermediate_size": 44, "num_attention_heads": 5, "num_hidden_layers": 2, "patch_size": 2, "max_image_size": 12,
    "min_image_size": 4,
}  # fmt: skip


def _hunyuan_vl(**changes: Any) -> Any:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 3.0, "factor": 1.0, "mrope_section": [2, 1, 1]}
    text = {**TWO, "rope_parameters": rope, **changes}
    config = tf.HunYuanVLConfig(
        text_config=text, vision_config=HUNYUAN_EYE, image_token_id=IMAGE, tie_word_embeddings=False
    )
    return tf.HunYuanVLForConditionalGeneration(config)


ARIA: dict[str, Any] = {**HEADS, "intermediate_size": 20, "moe_num_experts": 4, "moe_num_shared_experts": 2}

ARIA_SEEN: dict[str, Any] = {
    "vision_config": {**TOWER, "model_type": "idefics3_vision"},
    "projector_patch_to_query_dict": {9: 3, 16: 5},
}


def _aria(**changes: Any) -> Any:
    config = tf.AriaConfig(text_config={**ARIA, **changes}, image_token_index=IMAGE, **ARIA_SEEN)
    return tf.AriaForConditionalGeneration(config)


DEEPSEEK4: dict[str, Any] = {
    **{k: v for k, v in HEADS.items() if k not in ("num_key_value_heads", "intermediate_size")}, "num_hidden_layers": 3, "head_dim": 12,
    "partial_rotary_factor": 0.5, "q_lora_rank": 18, "num_attention_heads": 6, "o_groups": 2, "o_lora_rank": 14, "moe_intermediate_size": 20,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 3, "hc_sinkhorn_iters": 3, "swiglu_limit": 0.6, "sliding_window": 4,
    "index_n_heads": 4, "index_head_dim": 8, "index_topk": 2, "num_nextn_predict_layers": 0,
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
}  # fmt: skip


def _deepseek4(**changes: Any) -> Any:
    model = tf.DeepseekV4ForCausalLM(tf.DeepseekV4Config(**{**DEEPSEEK4, **changes}))
    told = model.model.layers[0].mlp.gate.tid2eid  # which experts a word goes to
    told.copy_(torch.arange(told.numel()).reshape(told.shape) % 4)
    return model


ZAYA: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k != "intermediate_size"}, "num_attention_heads": 8, "num_key_value_heads": 4, "num_experts": 4,
    "moe_intermediate_size": 20, "router_hidden_size": 18, "attention_bias": True, "lm_head_bias": True, "sliding_window": 4,
    "layer_types": ["hybrid", "hybrid_sliding"],
}  # fmt: skip


def _deepseek4_ahead() -> Any:
    like = {"enorm": "norm", "hnorm": "norm", "norm": "norm"}
    beside = {f"mtp.0.{name}.weight": f"model.{other}.weight" for name, other in like.items()}
    beside |= {f"mtp.0.{x}_proj.weight": "head.weight" for x in "eh"}
    return ahead(_deepseek4(), "model.layers.2.", "mtp.0.", beside)


QWEN4: dict[str, Any] = {
    **NEXT_MIXED, "layer_types": ["linear_attention", "indexed_attention"], "hc_count": 3, "hc_lowrank": 14, "ple_layer_ids": [1],
    "ple_embed_dim": 20, "ple_conv_kernel_size": 2, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 40,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 2, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8,
    "indexer_budget": 4, "indexer_compress_ratio": 2, "eos_token_id": 66, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}  # fmt: skip


QWEN4_SEEN: dict[str, Any] = {
    "text_config": {**QWEN4, "rope_parameters": {**SECTIONS, "partial_rotary_factor": 1.0}},
    "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16},
}  # fmt: skip


def _qwen4() -> Any:
    config = tf.Qwen4ExpConfig(
        **QWEN4_SEEN, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=62, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Qwen4ExpForConditionalGeneration(config)


LFM3: dict[str, Any] = {
    **TWO, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 4, "conv_L_cache": 3,
    "conv_bias": True,
}  # fmt: skip

FLINT: dict[str, Any] = {
    **MIXED, "num_hidden_layers": 3, "shared_expert_intermediate_size": 24, "mlp_only_layers": [0], "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
KOLIBRI: dict[str, Any] = {
    **{k: v for k, v in MIXED.items() if k != "intermediate_size"}, "shared_expert_intermediate_size": 24, "layer_types": LAYERS, "sliding_window": 4,
}  # fmt: skip

QIANFAN: dict[str, Any] = {**TOWER, "image_size": [8, 8], "patch_size": [2, 2]}


def _qianfan() -> Any:
    config = tf.QianfanOCRConfig(
        text_config={**TWO, "model_type": "qwen3"}, vision_config=QIANFAN, image_token_id=IMAGE, image_seq_length=4
    )
    return tf.QianfanOCRForConditionalGeneration(config)


LXMERT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 40, "max_position_embeddings": 32, "l_layers": 2, "r_layers": 2,
    "x_layers": 2, "visual_feat_dim": 10, "num_qa_labels": 5, "num_object_labels": 5, "num_attr_labels": 4,
}  # fmt: skip


GLMGA: dict[str, Any] = {
    "text_config": {**GLM, "model_type": "glm4v_text"},
    "vision_config": {**GLM_EYES, "model_type": "glm4v_vision"},
}


def _glmga() -> Any:
    """GLM-4.6V by another name."""
    config = tf.GlmgaConfig(**GLMGA, **PLACED)
    return tf.AutoModelForImageTextToText.from_config(config)


LFM3_EYE: dict[str, Any] = {
    **{k: v for k, v in GRID.items() if k not in ("depth", "num_heads")}, "hidden_size": 48, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "layer_types": ["conv", "full_attention"],
}  # fmt: skip


def _lfm3_vl() -> Any:
    config = tf.Lfm3VlConfig(
        text_config={**LFM3, "model_type": "lfm3"}, vision_config=LFM3_EYE, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=62, projector_hidden_size=36, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Lfm3VlForConditionalGeneration(config)


ERNIE_TEXT: dict[str, Any] = {
    **HEADS, "use_bias": True, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [20, 12], "moe_num_shared_experts": 2,
    "mlp_layer_types": ["dense", "sparse"], "rope_parameters": {**SECTIONS, "mrope_section": [1, 1, 2]},
}  # fmt: skip
ERNIE_EYE: dict[str, Any] = {**GRID, "hidden_size": 60, "intermediate_size": 44, "temporal_merge_size": 2}


def _ernie_vl() -> Any:
    config = tf.Ernie4_5_VLMoeConfig(
        text_config=ERNIE_TEXT, vision_config=ERNIE_EYE, image_token_id=IMAGE, video_token_id=64, image_start_token_id=65, image_end_token_id=66,
        video_start_token_id=62, video_end_token_id=63, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Ernie4_5_VLMoeForConditionalGeneration(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
RECENT: dict[str, tuple[Callable[[], Any], float]] = {
    "ovis2": (_ovis2, 1e-5),
    "ovis2-plain": (lambda: _ovis2(qkv_bias=False, hidden_stride=1), 1e-5),
    "hunyuan_vl": (_hunyuan_vl, 1e-5),
    "aria": (_aria, 1e-5),
    "deepseek_v4": (_deepseek4, 1e-5),
    "deepseek_v4-ahead": (_deepseek4_ahead, 1e-5),
    "qwen4_exp_text": (lambda: tf.Qwen4ExpForCausalLM(tf.Qwen4ExpTextConfig(**QWEN4)), 1e-5),
    "qwen4_exp": (_qwen4, 1e-5),
    "lfm3": (lambda: tf.Lfm3ForCausalLM(tf.Lfm3Config(**LFM3)), 1e-5),
    "lfm3-plain": (lambda: tf.Lfm3ForCausalLM(tf.Lfm3Config(**LFM3, use_sandwich_norm=False, use_attention_gate=False)), 1e-5),
    "flint": (lambda: tf.FlintForCausalLM(tf.FlintConfig(**FLINT)), 1e-5),
    "kolibri1": (lambda: tf.Kolibri1ForCausalLM(tf.Kolibri1Config(**KOLIBRI)), 1e-5),
    "qianfan_ocr": (_qianfan, 1e-5),
    "lxmert": (lambda: tf.LxmertForPreTraining(tf.LxmertConfig(**LXMERT)), 1e-9),
    "lxmert-answers": (lambda: tf.LxmertForQuestionAnswering(tf.LxmertConfig(**LXMERT, hidden_act="relu")), 1e-9),
    "glmga": (_glmga, 1e-5),
    "lfm3_vl": (_lfm3_vl, 1e-5),
    "ernie4_5_vl_moe": (_ernie_vl, 1e-5),
    "zaya": (lambda: tf.ZayaForCausalLM(tf.ZayaConfig(**ZAYA)), 1e-5),
    "aria_text": (lambda: tf.AriaTextForCausalLM(tf.AriaTextConfig(**ARIA, attention_bias=True, mlp_bias=True)), 1e-5),
}  # fmt: skip

PLAINLY = ("ovis2", "hunyuan_vl", "aria", "zaya", "lfm3", "lxmert", "glmga")
CONVERTED_RECENT = [name for name in RECENT if not name.startswith(PLAINLY)]
"""Those that transformers stores otherwise than it computes with them."""


def _tokenised(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, between the tokens that frame it."""
    side = config.vision_config.image_size // config.vision_config.patch_size // config.vision_config.hidden_stride
    ids = torch.randint(4, 60, (3, 24), generator=rng)
    ids[:, 1], ids[:, 2 : 2 + side**2], ids[:, 2 + side**2] = 63, IMAGE, 64
    return {"input_ids": ids, "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)}


def _ruled(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, whose rows end in a token of their own."""
    ids = torch.randint(4, 60, (3, 14), generator=rng)
    ids[:, 1:9] = IMAGE
    return {
        "input_ids": ids, "pixel_values": torch.randn((3 * 16, 3 * 2 * 2), generator=rng, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 3), "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def _queried(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, of which learned queries make five tokens."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1:6] = IMAGE
    return {"input_ids": ids, "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)}


def _located(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, and what was found in images, with where."""
    return {
        "input_ids": torch.randint(1, 60, (3, 11), generator=rng), "visual_pos": torch.rand((3, 5, 4), generator=rng, dtype=torch.float64),
        "visual_feats": torch.randn((3, 5, config.visual_feat_dim), generator=rng, dtype=torch.float64),
    }  # fmt: skip


def _merged(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, of which one token stands for four patches."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1:5] = IMAGE
    return {
        "input_ids": ids, "pixel_values": torch.randn((3 * 16, 3 * 2 * 2), generator=rng, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 3), "mm_token_type_ids": (ids == IMAGE).int(),
        "moe_mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


RECENT_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    "ovis2": _tokenised,
    "hunyuan_vl": _ruled,
    "aria": _queried,
    "ernie4_5_vl_moe": _merged,
    "lxmert": _located,
}
"""By model type: how its inputs are made."""
