"""Sizes, classes and edits of specs that several families share."""

from __future__ import annotations

from typing import Any

import torch

# Sizes that tell axes apart: heads, groups, coordinates of a head, neurons and width all differ.
BODY = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
CAUSAL = {**BODY, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False}
TIED = {**CAUSAL, "tie_word_embeddings": True}
GROUPED = {**BODY, "num_key_value_heads": 2}
LAYERS = ["sliding_attention", "full_attention"]
EXPERTS = {**CAUSAL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 24}
BART = {
    "vocab_size": 67, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
TOWERS = {
    "text_config": {**BODY, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": {
        "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44,
        "image_size": 8, "patch_size": 4, "hidden_act": "relu",
    },
    "projection_dim": 20,
}  # fmt: skip
BODY_OF_THREE = {**BODY, "num_hidden_layers": 3}
CAUSAL_OF_THREE = {**BODY_OF_THREE, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False}
LATENT_EXPERTS = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32, "tie_word_embeddings": False, "q_lora_rank": 18,
    "kv_lora_rank": 14, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 7, "n_routed_experts": 12,
    "n_shared_experts": 2, "moe_intermediate_size": 10, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 3,
}  # fmt: skip
ROUTED_BODY = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 20, "max_position_embeddings": 32, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
LOCAL = {**ROUTED_BODY, "num_local_experts": 5}
PIXELS = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40, "image_size": 8,
    "patch_size": 4, "num_labels": 5,
}  # fmt: skip
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
TOWER_OF_PATCHES = {**TOWERS["vision_config"], "hidden_act": "gelu"}
IMAGE = 3
"""The id of the token that stands for a piece of an image."""
KNOWN: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KNOWN_CAUSAL: dict[str, Any] = {**CAUSAL, **KNOWN}
KNOWN_CAUSAL_WITHOUT_HEAD: dict[str, Any] = {k: v for k, v in KNOWN_CAUSAL.items() if k != "head_dim"}
TWO: dict[str, Any] = {**CAUSAL, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SCAN: dict[str, Any] = {
    "mamba_n_heads": 12, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 10, "mamba_d_conv": 3,
    "mamba_expand": 2, "mamba_chunk_size": 4,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 48,
    "state_size": 10,
    "num_hidden_layers": 2,
    "conv_kernel": 3,
    "expand": 2,
    "time_step_rank": 5,
}
HEADS: dict[str, Any] = {k: v for k, v in TWO.items() if k != "head_dim"}
MIXED: dict[str, Any] = {**TWO, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
ROUTED_BY_GROUP: dict[str, Any] = {
    **TWO, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "attention_bias": True,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **HEADS, "num_key_value_heads": 6, "q_lora_rank": 18, "kv_lora_rank": 14, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 7,
}  # fmt: skip
ROUTED_LATENT: dict[str, Any] = {
    **LATENT, "n_routed_experts": 12, "n_shared_experts": 2, "moe_intermediate_size": 10, "num_experts_per_tok": 4, "n_group": 4,
    "topk_group": 3, "attention_bias": True,
}  # fmt: skip
NEXT: dict[str, Any] = {
    **TWO, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3, "attention_bias": True,
}  # fmt: skip
NEXT_MIXED: dict[str, Any] = {
    **{k: v for k, v in NEXT.items() if k != "intermediate_size"}, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
}  # fmt: skip
SECTIONS_OF_A_PART: dict[str, Any] = {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
PLAIN: dict[str, Any] = {k: v for k, v in HEADS.items() if k != "num_key_value_heads"}
NEAR, FULL = LAYERS
LENT: dict[str, Any] = {
    "num_hidden_layers": 6, "layer_types": [NEAR, NEAR, FULL] * 2, "sliding_window": 4, "num_kv_shared_layers": 3,
}  # fmt: skip
"""Keys and values of a layer that no other reads, of one that two others read, and of one that another one
reads."""
GEMMA3N: dict[str, Any] = {
    **TWO, **LENT, "hidden_size_per_layer_input": 7,
    "vocab_size_per_layer_input": 67, "altup_num_inputs": 3, "laurel_rank": 5, "activation_sparsity_pattern": [0.6, *[0.0] * 5],
    "intermediate_size": [40] * 6, "attention_bias": True,
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    **TWO, **LENT, "global_head_dim": 16,
    "hidden_size_per_layer_input": 7, "vocab_size_per_layer_input": 67, "final_logit_softcapping": 3.0, "attention_bias": True,
}  # fmt: skip
GEMMA4_ROUTED: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "global_head_dim": 12, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 20, "attention_k_eq_v": True, "num_global_key_value_heads": 3,
}  # fmt: skip
UMT5 = {
    "vocab_size": 67, "d_model": 48, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 6,
    "relative_attention_num_buckets": 8,
}  # fmt: skip
SHAPE = {k: v for k, v in PIXELS.items() if k != "intermediate_size"}
NARROW_TOWER = {
    "hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8,
    "patch_size": 2,
}  # fmt: skip
SAID = {**TEXT, "num_hidden_layers": 2}
AYA = {
    "text_config": {**SAID, "model_type": "cohere2", "tie_word_embeddings": True}, "downsample_factor": 2, "alignment_intermediate_size": 28,
    "vision_config": {**NARROW_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
}  # fmt: skip
TASK_CLASSES = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
READER_CLASSES = ["Model", "ForMaskedLM", "ForMultipleChoice", *TASK_CLASSES]
PAGE_CLASSES = ["Model", "ForMaskedLM", *TASK_CLASSES]
COMPOSED_MODELS = ["Model", "ForConditionalGeneration"]
LANGUAGE_MODELS = ["Model", "ForCausalLM"]
CLASSIFYING_LANGUAGE_MODELS = [*LANGUAGE_MODELS, "ForSequenceClassification"]
KEYS = (
    "(kv g c pair) => (kv g pair c)",
    "(kv c' pair) => (kv pair c')",
)
ROTATED = "residual res: Perm => residual res: O"
PLAIN_GAINS = ("diag(res n1) => (res n1)", "diag(res n2) => (res n2)", "diag(res nf) => (res nf)")
DECODER_CLASSES = ["Model", "ForCausalLM", *TASK_CLASSES]
VECTORS = ("diag(res n1) => res", "diag(res n2) => res", "diag(res nf) => res")
LAYER_NORM = "residual res: Perm folded OFixingOnes => residual res: Perm folded"
Inputs = dict[str, torch.Tensor]
HEARD_TOKEN = 62
"""The id of the token that stands for a piece of sound."""
UNIFIED: dict[str, Any] = {
    **{k: v for k, v in GEMMA4.items() if "per_layer" not in k}, "attention_k_eq_v": True, "num_global_key_value_heads": 3,
}  # fmt: skip
DELTA: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
WRITES: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}
CROSS_WRITER: dict[str, Any] = {**BART, "is_encoder_decoder": False, **WRITES}
WINDOWS = {
    "image_size": 40, "patch_size": 2, "embed_dim": 12, "depths": [2, 1, 1, 1], "num_heads": [3, 4, 6, 8],
    "window_size": 3, "mlp_ratio": 1.5, "num_labels": 5,
}  # fmt: skip
NAMED = {**BODY, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
LOOKED = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8,
    "patch_size": 4, "hidden_act": "relu",
}  # fmt: skip
QWEN4: dict[str, Any] = {
    **NEXT_MIXED, "layer_types": ["linear_attention", "indexed_attention"], "hc_count": 3, "hc_lowrank": 14, "ple_layer_ids": [1],
    "ple_embed_dim": 20, "ple_conv_kernel_size": 2, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 40,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 2, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8,
    "indexer_budget": 4, "indexer_compress_ratio": 2, "eos_token_id": 66, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}  # fmt: skip
LLAMA: dict[str, Any] = {**TEXT, **KNOWN, "model_type": "llama"}
QWEN2: dict[str, Any] = {**LLAMA, "model_type": "qwen2"}
SIGLIP: dict[str, Any] = {**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
SIGLIP2: dict[str, Any] = {
    **TOWER,
    "model_type": "siglip2_vision_model",
    "num_patches": 16,
    "vision_use_head": False,
}
CHOOSING: dict[str, Any] = {"index_topk": 4, "index_head_dim": 10, "index_n_heads": 3}
LEARNT: dict[str, Any] = {k: v for k, v in PLAIN.items() if k != "tie_word_embeddings"}
KNOWN_TEXT: dict[str, Any] = {**TEXT, **KNOWN, "num_hidden_layers": 2}
EYE: dict[str, Any] = {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44}
WINDOWED: dict[str, Any] = {**EYE, "window_size": 8, "fullatt_block_indexes": [1]}
IMAGE_TOKENS: dict[str, Any] = {"image_token_id": IMAGE, "video_token_id": 64, "tie_word_embeddings": False}
BOUNDED_IMAGE_TOKENS: dict[str, Any] = {**IMAGE_TOKENS, "vision_start_token_id": 65, "vision_end_token_id": 66}
