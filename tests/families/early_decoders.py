"""Decoders before Llama: OPT, BLOOM, MPT and others."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import mutant
from toy_models import causal
from toy_settings import (
    CLASSIFYING_LANGUAGE_MODELS,
    DECODER_CLASSES,
    KNOWN,
    LANGUAGE_MODELS,
    PLAIN,
)

OPT = {
    "vocab_size": 67, "hidden_size": 48, "word_embed_proj_dim": 48, "num_hidden_layers": 2,
    "num_attention_heads": 6, "ffn_dim": 40, "max_position_embeddings": 32,
}  # fmt: skip
BLOOM = {"vocab_size": 67, "hidden_size": 48, "n_layer": 2, "n_head": 6}
MPT = {"vocab_size": 67, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 32}


def _opt(**changes: Any) -> Any:
    return tf.OPTForCausalLM(tf.OPTConfig(**{**OPT, **changes}))


NOT_SCALED = "size gains = 0 if layer_norm_elementwise_affine == False or do_layer_norm_before == False else 1"
DBRX: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 32, **KNOWN, "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 0.5},
    "ffn_config": {"hidden_size": 48, "ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
XGLM: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "ffn_dim": 40, "num_layers": 2, "attention_heads": 6, "max_position_embeddings": 32, **KNOWN,
}  # fmt: skip
ANT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_attention_heads": 6, "dim_head": 7, "dim_ff": 40, "num_hidden_layers": 2, "prompt_types": 3,
    "prompt_length": 4, "segment_types": 3, "position_bias_num_buckets": 8, "position_bias_max_distance": 16,
}  # fmt: skip

TOYS: dict[str, Toy] = {
    "opt": (lambda: _opt(), 1e-9),
    "opt-projected": (lambda: _opt(do_layer_norm_before=False, word_embed_proj_dim=24), 1e-9),
    "bloom": (lambda: tf.BloomForCausalLM(tf.BloomConfig(**BLOOM)), 1e-5),
    "mpt": (lambda: tf.MptForCausalLM(tf.MptConfig(**MPT)), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "biogpt": (lambda: tf.BioGptForCausalLM(tf.BioGptConfig(**PLAIN)), 1e-9),
    "dbrx": (lambda: causal("Dbrx", DBRX), 1e-9),
    "xglm": (lambda: causal("XGLM", XGLM), 1e-9),
    "xglm-relu": (lambda: causal("XGLM", XGLM, activation_function="relu", tie_word_embeddings=False), 1e-9),
    "ctrl": (
        lambda: tf.CTRLLMHeadModel(
            tf.CTRLConfig(vocab_size=67, n_positions=32, n_embd=48, dff=40, n_layer=2, n_head=6)
        ),
        1e-9,
    ),
    "cpmant": (lambda: tf.CpmAntForCausalLM(tf.CpmAntConfig(**ANT)), 1e-5),
}

NAMES: dict[str, Saved] = {
    "OPT": (OPT, ["Model", "ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering"]),
    "Bloom": (BLOOM, DECODER_CLASSES),
    "Mpt": (MPT, DECODER_CLASSES),
}

MORE_NAMES: dict[str, Saved] = {
    "BioGpt": (PLAIN, [*CLASSIFYING_LANGUAGE_MODELS, "ForTokenClassification"]),
    "Dbrx": (DBRX, LANGUAGE_MODELS),
    "XGLM": (XGLM, LANGUAGE_MODELS),
    "CTRL": (
        {"vocab_size": 67, "n_positions": 32, "n_embd": 48, "dff": 40, "n_layer": 2, "n_head": 6},
        ["Model", "LMHeadModel", "ForSequenceClassification"],
    ),
    "CpmAnt": (ANT, LANGUAGE_MODELS),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["biogpt", "dbrx"], "OFixingOnes"),
    "ctrl": {},
    **dict.fromkeys(["xglm", "xglm-relu"], "Fixed"),
    "cpmant": "O",
}

MUTANTS = [
    mutant("opt", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("opt", "query bias forgotten", "qk", "q_proj.bias (h qk) => q_proj.bias rows"),
    mutant("opt", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("opt-projected", "post-LN gains scaled", "n1", f"{NOT_SCALED} => size gains = 1"),
    mutant("bloom", "heads permuted under ALiBi", "h", "space qk: => space h: Perm[l]\nspace qk:"),
    mutant("bloom", "fused block by block", "qk", "(h [qk | qk' | ov]) => [h qk | h qk' | h ov]"),
    mutant("mpt", "heads permuted under ALiBi", "h", "space qk: => space h: Perm[l]\nspace qk:"),
    mutant("mpt", "key not dual", "qk", "| h qk' | => | h qk |"),
    mutant("biogpt", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant(
        "biogpt", "positions forgotten", "res", "embed_positions.weight pos res => embed_positions.weight pos other"
    ),
    mutant(
        "dbrx",
        "rotations where queries and keys are clipped",
        "c",
        "space sg as qk: Sign[l, kv, pair] => space c as qk: Complex[l, kv, pair]",
        "size c = 2\n => ",
        "size sg = 1\n => ",
        "kv g c pair sg => kv g c pair",
        "kv c pair sg' => kv c' pair",
    ),
    mutant("dbrx", "any matrix where values are clipped", "ov", "space ov: Perm[l, kv] => space ov: GL[l, kv]"),
    mutant(
        "dbrx",
        "the last matrix of experts read as it is used elsewhere",
        "ff",
        "w2 (e ff u') res => w2 (ff e u') res",
    ),
    mutant("xglm", "a stream under sinusoids", "res", "space h: => residual res: Perm\nspace h:"),
    mutant("xglm", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("ctrl", "a stream under sinusoids", "res", "space h: => residual res: Perm\nspace h:"),
    mutant("ctrl", "negative factors through ReLU", "u", "u as scale: PositiveScale => u as scale: Scale"),
    mutant(
        "cpmant",
        "heads per layer under one table",
        "h",
        "space h: Perm\n => space h: Perm[l]\n",
        "relative_attention_bias bucket h => relative_attention_bias bucket heads",
    ),
    mutant(
        "cpmant",
        "gate and up mistaken",
        "u",
        "w_0.weight ff (res n2)' => w_0.weight (ff u) (res n2)'",
        "w_1.weight (ff u) => w_1.weight ff",
    ),
]
