"""Constructors of tiny hybrids: attention beside state spaces, gated delta rules and short convolutions (see
`toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

from toy_models import CAUSAL

TWO: dict[str, Any] = {**CAUSAL, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SCAN: dict[str, Any] = {
    "mamba_n_heads": 12, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 10, "mamba_d_conv": 3,
    "mamba_expand": 2, "mamba_chunk_size": 4,
}  # fmt: skip
MIXED = ["mamba", "attention"]
JAMBA: dict[str, Any] = {
    **TWO, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
    "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_dt_rank": 5,
    "mamba_expand": 2,
}  # fmt: skip
BAMBA: dict[str, Any] = {**TWO, **SCAN, "attn_layer_indices": [1]}
FALCON_H1: dict[str, Any] = {
    **TWO, **SCAN, "mamba_d_ssm": 96, "attention_in_multiplier": 0.7, "key_multiplier": 0.5, "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [0.8, 0.6],
}  # fmt: skip
GRANITE: dict[str, Any] = {
    **TWO,
    **SCAN,
    "layer_types": MIXED,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 24,
    "intermediate_size": 20,
}
LFM2: dict[str, Any] = {
    **TWO,
    "layer_types": ["conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
    "tie_word_embeddings": True,
}
LFM2_MOE: dict[str, Any] = {
    **TWO, "layer_types": ["conv", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 1,
    "moe_intermediate_size": 20, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    **TWO, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
    "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3,
}  # fmt: skip
NEMOTRON_H: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k != "num_hidden_layers"}, "layers_block_type": ["mamba", "attention", "mlp", "moe"],
    "ssm_state_size": 10, "mamba_num_heads": 12, "mamba_head_dim": 8, "n_groups": 2, "conv_kernel": 3, "expand": 2, "chunk_size": 4,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 24,
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
MAMBA2: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "state_size": 10, "num_hidden_layers": 2, "conv_kernel": 3, "expand": 2,
    "num_heads": 12, "head_dim": 8, "n_groups": 2, "chunk_size": 4,
}  # fmt: skip
ZAMBA2: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k not in ("head_dim",)}, "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_expand": 2,
    "mamba_ngroups": 2, "n_mamba_heads": 12, "chunk_size": 4, "num_mem_blocks": 1, "adapter_rank": 7, "use_mem_rope": True, "tie_word_embeddings": True,
}  # fmt: skip


def _causal(kind: str, settings: dict[str, Any], **changes: Any) -> Any:
    return getattr(tf, f"{kind}ForCausalLM")(getattr(tf, f"{kind}Config")(**{**settings, **changes}))


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm and scans run in
# float32.
HYBRIDS: dict[str, tuple[Callable[[], Any], float]] = {
    "jamba": (lambda: _causal("Jamba", JAMBA), 1e-5),
    "bamba": (lambda: _causal("Bamba", BAMBA), 1e-5),
    "falcon_h1": (lambda: _causal("FalconH1", FALCON_H1), 1e-5),
    "granitemoehybrid": (lambda: _causal("GraniteMoeHybrid", GRANITE), 1e-5),
    "granitemoehybrid-dense": (lambda: _causal("GraniteMoeHybrid", GRANITE, num_local_experts=0, position_embedding_type="rope"), 1e-5),
    "lfm2": (lambda: _causal("Lfm2", LFM2), 1e-5),
    "lfm2_moe": (lambda: _causal("Lfm2Moe", LFM2_MOE), 1e-5),
    "qwen3_next": (lambda: _causal("Qwen3Next", QWEN3_NEXT), 1e-5),
    "nemotron_h": (lambda: _causal("NemotronH", NEMOTRON_H), 1e-5),
    "zamba2": (lambda: _causal("Zamba2", ZAMBA2), 1e-5),
    "mamba": (lambda: tf.MambaForCausalLM(tf.MambaConfig(**MAMBA)), 1e-5),
    "falcon_mamba": (lambda: tf.FalconMambaForCausalLM(tf.FalconMambaConfig(**MAMBA)), 1e-5),
    "mamba2": (lambda: tf.Mamba2ForCausalLM(tf.Mamba2Config(**MAMBA2)), 1e-5),
}  # fmt: skip
