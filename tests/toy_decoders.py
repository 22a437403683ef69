"""Constructors of tiny decoders and encoders whose layouts combine what others have (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

from toy_models import BODY, CAUSAL, LAYERS

KNOWN: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN: dict[str, Any] = {**CAUSAL, **KNOWN}
NORMED: dict[str, Any] = {k: v for k, v in PLAIN.items() if k != "head_dim"}
NEO: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_layers": 2, "num_heads": 6, "intermediate_size": 40, "max_position_embeddings": 32,
    "attention_types": [[["global", "local"], 1]], "window_size": 4, **KNOWN,
}  # fmt: skip
WIDE: dict[str, Any] = {
    "vocab_size": 67,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 32,
    "n_inner": 40,
    **KNOWN,
}
ROUTED: dict[str, Any] = {
    **PLAIN, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5,
}  # fmt: skip
GRANITE: dict[str, Any] = {**PLAIN, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 20}
GRANITE.pop("head_dim")
PROTEIN: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "max_position_embeddings": 32, "pad_token_id": 0, "mask_token_id": 4,
}  # fmt: skip


def _causal(kind: str, settings: dict[str, Any], **changes: Any) -> Any:
    return getattr(tf, f"{kind}ForCausalLM")(getattr(tf, f"{kind}Config")(**{**settings, **changes}))


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
COMBINED: dict[str, tuple[Callable[[], Any], float]] = {
    "seed_oss": (lambda: _causal("SeedOss", PLAIN), 1e-5),
    "smollm3": (lambda: _causal("SmolLM3", NORMED, no_rope_layers=[1, 0]), 1e-5),
    "arcee": (lambda: _causal("Arcee", PLAIN, mlp_bias=True), 1e-5),
    "ernie4_5": (lambda: _causal("Ernie4_5", PLAIN, use_bias=True), 1e-5),
    "glm": (lambda: _causal("Glm", PLAIN), 1e-5),
    "glm4": (lambda: _causal("Glm4", PLAIN, partial_rotary_factor=1.0), 1e-5),
    "glm4_moe": (lambda: _causal("Glm4Moe", ROUTED, use_qk_norm=True), 1e-5),
    "glm4_moe-plain": (lambda: _causal("Glm4Moe", ROUTED, attention_bias=True, n_group=1), 1e-5),
    "olmo2": (lambda: _causal("Olmo2", NORMED), 1e-5),
    "olmo3": (lambda: _causal("Olmo3", NORMED, layer_types=LAYERS, sliding_window=4), 1e-5),
    "exaone4": (lambda: _causal("Exaone4", PLAIN, layer_types=LAYERS, sliding_window=4), 1e-5),
    "nemotron": (lambda: _causal("Nemotron", PLAIN, attention_bias=True, mlp_bias=True), 1e-9),
    "gptj": (lambda: tf.GPTJForCausalLM(tf.GPTJConfig(**WIDE, rotary_dim=4)), 1e-5),
    "gpt_neo": (lambda: tf.GPTNeoForCausalLM(tf.GPTNeoConfig(**NEO)), 1e-5),
    "gpt_bigcode": (lambda: tf.GPTBigCodeForCausalLM(tf.GPTBigCodeConfig(**WIDE)), 1e-5),
    "gpt_bigcode-heads": (lambda: tf.GPTBigCodeForCausalLM(tf.GPTBigCodeConfig(**WIDE, multi_query=False)), 1e-5),
    "granitemoe": (lambda: _causal("GraniteMoe", GRANITE), 1e-5),
    "granitemoeshared": (lambda: _causal("GraniteMoeShared", GRANITE, shared_intermediate_size=24), 1e-5),
    "mpnet": (lambda: tf.MPNetForMaskedLM(tf.MPNetConfig(**BODY)), 1e-9),
    "esm": (lambda: tf.EsmForMaskedLM(tf.EsmConfig(**PROTEIN)), 1e-9),
    "esm-rotary": (lambda: tf.EsmForMaskedLM(tf.EsmConfig(**PROTEIN, position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=True)), 1e-5),
}  # fmt: skip
