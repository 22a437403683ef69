"""Constructors of tiny mixtures of experts (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

LATENT = {
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


def _deepseek(version: str, **changes: Any) -> Any:
    config = getattr(tf, f"Deepseek{version}Config")(**{**LATENT, **changes})
    return getattr(tf, f"Deepseek{version}ForCausalLM")(config)


# name -> (constructor, largest relative change of outputs that rounding explains)
ROUTED: dict[str, tuple[Callable[[], Any], float]] = {
    "deepseek_v2": (lambda: _deepseek("V2", topk_method="group_limited_greedy"), 1e-5),
    "deepseek_v2-lite": (
        lambda: _deepseek(
            "V2", q_lora_rank=None, n_group=None, topk_group=None, n_routed_experts=5, mlp_bias=True,
            attention_bias=True,
        ),
        1e-5,
    ),
    "deepseek_v3": (lambda: _deepseek("V3", attention_bias=True, num_nextn_predict_layers=0), 1e-5),
    "deepseek_v3-halves": (lambda: _deepseek("V3", rope_interleave=False, n_group=1, topk_group=1), 1e-5),
    "phimoe": (
        lambda: tf.PhimoeForCausalLM(
            tf.PhimoeConfig(**LOCAL, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.3)
        ),
        1e-5,
    ),
    "gpt_oss": (
        lambda: tf.GptOssForCausalLM(
            tf.GptOssConfig(**LOCAL, head_dim=8, layer_types=["sliding_attention", "full_attention"], sliding_window=4)
        ),
        1e-5,
    ),
    "olmoe": (lambda: tf.OlmoeForCausalLM(tf.OlmoeConfig(**ROUTED_BODY, num_experts=5, pad_token_id=0)), 1e-5),
}  # fmt: skip
