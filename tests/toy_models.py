"""Constructors of tiny Hugging Face models, architecture by architecture (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

# Sizes that tell axes apart: heads, groups, coordinates of a head, neurons and width all differ.
BODY = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
CAUSAL = {**BODY, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False}
TIED = {**CAUSAL, "tie_word_embeddings": True}
OPT = {
    "vocab_size": 67, "hidden_size": 48, "word_embed_proj_dim": 48, "num_hidden_layers": 2,
    "num_attention_heads": 6, "ffn_dim": 40, "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = {**BODY, "num_key_value_heads": 2}
PHI3 = {**GROUPED, "pad_token_id": 0}
FALCON = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "ffn_hidden_size": 40,
    "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
BLOOM = {"vocab_size": 67, "hidden_size": 48, "n_layer": 2, "n_head": 6}
MPT = {"vocab_size": 67, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 32}
LAYERS = ["sliding_attention", "full_attention"]
EXPERTS = {**CAUSAL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 24}


def _neox(**changes: Any) -> Any:
    return tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**BODY, **changes))


def _opt(**changes: Any) -> Any:
    return tf.OPTForCausalLM(tf.OPTConfig(**{**OPT, **changes}))


def _phi3(**changes: Any) -> Any:
    return tf.Phi3ForCausalLM(tf.Phi3Config(**{**PHI3, **changes}))


def _falcon(**changes: Any) -> Any:
    return tf.FalconForCausalLM(tf.FalconConfig(**FALCON, **changes))


def _cohere(**changes: Any) -> Any:
    return tf.CohereForCausalLM(tf.CohereConfig(**TIED, pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes))


def _cohere2() -> Any:
    return tf.Cohere2ForCausalLM(
        tf.Cohere2Config(
            **TIED, pad_token_id=0, bos_token_id=1, eos_token_id=2, layer_types=LAYERS, sliding_window=4
        )
    )


def _granite() -> Any:
    return tf.GraniteForCausalLM(
        tf.GraniteConfig(
            **CAUSAL,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            attention_multiplier=0.4,
            logits_scaling=2.0,
        )
    )


def _stablelm(**changes: Any) -> Any:
    return tf.StableLmForCausalLM(tf.StableLmConfig(**GROUPED, **changes))


# name -> (constructor, largest relative change of outputs that rounding explains). Norms, softmax or rotations that
# are computed in float32 whatever the input give 1e-5.
DECODERS: dict[str, tuple[Callable[[], Any], float]] = {
    "gpt_neox": (lambda: _neox(rotary_pct=0.5), 1e-9),
    "gpt_neox-full": (
        lambda: _neox(rotary_pct=1.0, attention_bias=False, hidden_act="relu", use_parallel_residual=False),
        1e-9,
    ),
    "opt": (lambda: _opt(), 1e-9),
    "opt-projected": (lambda: _opt(do_layer_norm_before=False, word_embed_proj_dim=24), 1e-9),
    "gemma": (lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**TIED)), 1e-5),
    "gemma-untied": (lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**CAUSAL)), 1e-5),
    "gemma2": (
        lambda: tf.Gemma2ForCausalLM(
            tf.Gemma2Config(**TIED, layer_types=LAYERS, sliding_window=4, query_pre_attn_scalar=8)
        ),
        1e-5,
    ),
    "gemma3_text": (
        lambda: tf.Gemma3ForCausalLM(
            tf.Gemma3TextConfig(**TIED, layer_types=LAYERS, sliding_window=4, query_pre_attn_scalar=8)
        ),
        1e-5,
    ),
    "phi": (lambda: tf.PhiForCausalLM(tf.PhiConfig(**GROUPED)), 1e-9),
    "phi3": (_phi3, 1e-5),
    "phi3-partial": (lambda: _phi3(partial_rotary_factor=0.75, tie_word_embeddings=True), 1e-5),
    "falcon": (_falcon, 1e-9),
    "falcon-grouped": (
        lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2, bias=True, tie_word_embeddings=False),
        1e-9,
    ),
    "falcon-rw": (lambda: _falcon(alibi=True, multi_query=False, parallel_attn=False, bias=True), 1e-9),
    "bloom": (lambda: tf.BloomForCausalLM(tf.BloomConfig(**BLOOM)), 1e-5),
    "mpt": (lambda: tf.MptForCausalLM(tf.MptConfig(**MPT)), 1e-9),
    "cohere": (_cohere, 1e-5),
    "cohere-normed": (lambda: _cohere(use_qk_norm=True), 1e-5),
    "cohere2": (_cohere2, 1e-5),
    "granite": (_granite, 1e-5),
    "starcoder2": (lambda: tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**CAUSAL)), 1e-9),
    "stablelm": (lambda: _stablelm(use_qkv_bias=True, partial_rotary_factor=0.5), 1e-9),
    "stablelm-parallel": (lambda: _stablelm(use_parallel_residual=True, partial_rotary_factor=1.0), 1e-9),
    "qwen2_moe": (lambda: tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**SHARED)), 1e-5),
    "qwen3_moe": (lambda: tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**EXPERTS, mlp_only_layers=[1])), 1e-5),
}


BART = {
    "vocab_size": 67, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
SPEECH = {
    **{k: v for k, v in BART.items() if k not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 9, "max_source_positions": 10, "max_target_positions": 16,
}  # fmt: skip
TOWERS = {
    "text_config": {**BODY, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": {
        "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44,
        "image_size": 8, "patch_size": 4, "hidden_act": "relu",
    },
    "projection_dim": 20,
}  # fmt: skip
NARROW = {**BODY, "embedding_size": 24}
MODERN = {
    **BODY, "pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
    "layer_types": LAYERS, "local_attention": 4,
}  # fmt: skip


def _electra(model: Any, **changes: Any) -> Any:
    return model(tf.ElectraConfig(**{**NARROW, **changes}))


def _albert(**changes: Any) -> Any:
    return tf.AlbertForMaskedLM(tf.AlbertConfig(**NARROW, **changes))


def _modernbert(model: Any, **changes: Any) -> Any:
    return model(tf.ModernBertConfig(**MODERN, **changes))


ENCODERS: dict[str, tuple[Callable[[], Any], float]] = {
    "electra": (lambda: _electra(tf.ElectraForMaskedLM), 1e-9),
    "electra-wide": (lambda: _electra(tf.ElectraForPreTraining, embedding_size=48, hidden_act="relu"), 1e-9),
    "albert": (_albert, 1e-9),
    "albert-groups": (lambda: _albert(num_hidden_groups=2, inner_group_num=2, hidden_act="relu"), 1e-9),
    "modernbert": (lambda: _modernbert(tf.ModernBertForMaskedLM), 1e-5),
    "modernbert-biased": (
        lambda: _modernbert(
            tf.ModernBertForSequenceClassification,
            attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True,
        ),
        1e-5,
    ),
}  # fmt: skip


def _bart(kind: str, **changes: Any) -> Any:
    model = "MarianMTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration"
    return getattr(tf, model)(getattr(tf, f"{kind}Config")(**BART, **changes))


SEQUENCES: dict[str, tuple[Callable[[], Any], float]] = {
    "bart": (lambda: _bart("Bart"), 1e-9),
    "mbart": (lambda: _bart("MBart", activation_function="relu"), 1e-9),
    "marian": (lambda: _bart("Marian", activation_function="swish"), 1e-9),
    "pegasus": (lambda: _bart("Pegasus", activation_function="relu"), 1e-9),
    "whisper": (lambda: tf.WhisperForConditionalGeneration(tf.WhisperConfig(**SPEECH)), 1e-9),
    "clip": (lambda: tf.CLIPModel(tf.CLIPConfig(**TOWERS)), 1e-9),
}
