"""Decoders that are Llama but for details: norms, gates, positions, biases."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import mutant
from toy_models import causal
from toy_settings import (
    CAUSAL,
    CAUSAL_OF_THREE,
    CLASSIFYING_LANGUAGE_MODELS,
    DECODER_CLASSES,
    GROUPED,
    HEADS,
    KEYS,
    KNOWN_CAUSAL,
    KNOWN_CAUSAL_WITHOUT_HEAD,
    LANGUAGE_MODELS,
    LAYERS,
    PLAIN,
    TASK_CLASSES,
    TWO,
)


def _stablelm(**changes: Any) -> Any:
    return tf.StableLmForCausalLM(tf.StableLmConfig(**GROUPED | changes))


BIASED: dict[str, Any] = {**TWO, "attention_bias": True, "mlp_bias": True}


def _llama(kind: str, settings: dict[str, Any]) -> Any:
    """Of model types that transformers runs as Llama, and gives a config alone."""
    return tf.LlamaForCausalLM(getattr(tf, f"{kind}Config")(**settings))


ROTATED_UNDER_GAINS = ("res: SignedPerm folded O => res: O", "diag(res) => res", "diag(res n1) => (res n1)", "diag(res n2) => (res n2)", "diag(res nf) => (res nf)")  # fmt: skip
KEY_BIAS = "shift vb:  => shift kb: layers.{l}.self_attn.k_proj.bias\nshift vb: "
HRM: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k != "num_key_value_heads"}, "H_cycles": 2, "L_cycles": 2, "embedding_scale": 3.0,
    "attention_bias": True, "mlp_bias": True,
}  # fmt: skip
SUBTRACTED: dict[str, Any] = {
    **HEADS,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "attention_bias": True,
}

TOYS: dict[str, Toy] = {
    "starcoder2": (lambda: tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**CAUSAL)), 1e-9),
    "stablelm": (lambda: _stablelm(use_qkv_bias=True, partial_rotary_factor=0.5), 1e-9),
    "stablelm-parallel": (lambda: _stablelm(use_parallel_residual=True, partial_rotary_factor=1.0), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "stablelm-heads": (lambda: _stablelm(num_key_value_heads=6, use_qkv_bias=True), 1e-9),
    "stablelm-normed": (lambda: _stablelm(qk_layernorm=True, use_qkv_bias=True), 1e-9),
    "stablelm-unbiased": (lambda: _stablelm(num_key_value_heads=6), 1e-9),
    "seed_oss": (lambda: causal("SeedOss", KNOWN_CAUSAL), 1e-5),
    "smollm3": (lambda: causal("SmolLM3", KNOWN_CAUSAL_WITHOUT_HEAD, no_rope_layers=[1, 0]), 1e-5),
    "arcee": (lambda: causal("Arcee", KNOWN_CAUSAL, mlp_bias=True), 1e-5),
    "cwm": (lambda: causal("Cwm", TWO, layer_types=LAYERS, sliding_window=4), 1e-5),
    "internlm3": (lambda: _llama("InternLM3", BIASED), 1e-5),
    "iquestcoder": (lambda: _llama("IQuestCoder", TWO), 1e-5),
    "hyperclovax": (lambda: causal("HyperCLOVAX", BIASED, logits_scaling=0.5, residual_multiplier=0.7), 1e-5),
    "eurobert": (lambda: tf.EuroBertForMaskedLM(tf.EuroBertConfig(**BIASED)), 1e-5),
    "helium": (lambda: causal("Helium", BIASED), 1e-5),
    "jais2": (lambda: causal("Jais2", BIASED), 1e-9),
    "nanochat": (lambda: causal("NanoChat", TWO), 1e-5),
    "persimmon": (lambda: causal("Persimmon", PLAIN), 1e-5),
    "persimmon-plain": (lambda: causal("Persimmon", PLAIN, qk_layernorm=False), 1e-5),
    "apertus": (lambda: causal("Apertus", TWO, attention_bias=True), 1e-5),
    "hrm_text": (lambda: causal("HrmText", HRM), 1e-5),
    "bitnet": (lambda: causal("BitNet", HEADS, attention_bias=True, hidden_act="relu2"), 1e-5),
    "diffllama": (lambda: causal("DiffLlama", SUBTRACTED), 1e-5),
    "doge": (lambda: causal("Doge", HEADS, attention_bias=True, mlp_bias=True), 1e-5),
    "doge-routed": (
        lambda: causal(
            "Doge",
            HEADS,
            attention_bias=True,
            is_moe=True,
            num_experts=16,
            num_experts_per_tok=3,
            keep_window_size=4,
        ),
        1e-5,
    ),
}

NAMES: dict[str, Saved] = {
    "Starcoder2": (CAUSAL_OF_THREE, DECODER_CLASSES[:-1]),
    "StableLm": (GROUPED, DECODER_CLASSES[:-1]),
}

MORE_NAMES: dict[str, Saved] = {
    "SeedOss": (KNOWN_CAUSAL, CLASSIFYING_LANGUAGE_MODELS),
    "SmolLM3": (KNOWN_CAUSAL_WITHOUT_HEAD, CLASSIFYING_LANGUAGE_MODELS),
    "Arcee": (KNOWN_CAUSAL, CLASSIFYING_LANGUAGE_MODELS),
    "Cwm": (TWO, LANGUAGE_MODELS),
    "InternLM3": (BIASED, []),
    "IQuestCoder": (TWO, []),
    "HyperCLOVAX": (BIASED, LANGUAGE_MODELS),
    "EuroBert": (BIASED, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "Helium": (TWO, [*CLASSIFYING_LANGUAGE_MODELS, "ForTokenClassification"]),
    "Jais2": (BIASED, LANGUAGE_MODELS),
    "NanoChat": (TWO, LANGUAGE_MODELS),
    "Persimmon": (PLAIN, [*CLASSIFYING_LANGUAGE_MODELS, "ForTokenClassification"]),
    "Apertus": (TWO, [*LANGUAGE_MODELS, "ForTokenClassification"]),
    "BitNet": (HEADS, LANGUAGE_MODELS),
    "DiffLlama": (SUBTRACTED, [*LANGUAGE_MODELS, *TASK_CLASSES]),
    "Doge": (HEADS, [*LANGUAGE_MODELS, TASK_CLASSES[0]]),
    "HrmText": (HRM, LANGUAGE_MODELS),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(
        [
            *(
                "starcoder2",
                "stablelm",
                "stablelm-parallel",
                "stablelm-heads",
                "stablelm-normed",
                "stablelm-unbiased",
            ),
            *("jais2", "persimmon", "persimmon-plain"),
        ],
        "OFixingOnes",
    ),
    **dict.fromkeys(
        [
            "seed_oss",
            "smollm3",
            "arcee",
            "cwm",
            "internlm3",
            "iquestcoder",
            "eurobert",
            "helium",
            "apertus",
            "bitnet",
            "diffllama",
        ],
        "O",
    ),
    **dict.fromkeys(["hyperclovax", "doge", "doge-routed"], "SignedPerm"),
    **{key: {"res": "O"} for key in ["nanochat", "hrm_text"]},
}

WITHOUT_GAINS = {"nanochat", "hrm_text"}

IDLE = {
    ("stablelm-heads", "g"),
    ("stablelm-unbiased", "g"),
    ("stablelm-unbiased", "kb"),
    ("arcee", "vb"),
    ("cwm", "vb"),
    ("helium", "vb"),
    ("iquestcoder", "vb"),
    ("nanochat", "vb"),
    ("seed_oss", "vb"),
    ("smollm3", "vb"),
    ("smollm3", "kb"),
}

CONVERTED = {"hrm_text"}

MUTANTS = [
    mutant("starcoder2", "key bias under rotary positions", "kb", KEY_BIAS),
    mutant("starcoder2", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant("stablelm", "key bias free where it is rotated", "kb", "bias#1 if => bias#0 if"),
    mutant(
        "stablelm-parallel",
        "MLP past the shared norm",
        "n1",
        "up_proj.weight (ff u) (res n1)' => up_proj.weight (ff u) res'",
    ),
    mutant("seed_oss", "query bias forgotten", "c", "q_proj.bias (kv g c pair) => q_proj.bias rows"),
    mutant(
        "smollm3",
        "any matrix where one layer turns",
        "c",
        "space c as qk: Complex[l, kv, pair] => size c = 2\nspace c as qk: GL[l, kv, pair]",
    ),
    mutant("arcee", "a factor through a square", "u", "SquaredScale[l, ff] => PositiveScale[l, ff]"),
    mutant("cwm", "key not dual", "c", "(kv c' pair) => (kv c pair)"),
    mutant(
        "cwm", "scale on gate and up", "u", "gate_proj.weight ff (res n2)' => gate_proj.weight (ff u) (res n2)'"
    ),
    mutant("internlm3", "query bias forgotten", "c", "q_proj.bias (kv g c pair) => q_proj.bias rows"),
    mutant("internlm3", "bias of up not scaled", "u", "up_proj.bias (ff u) => up_proj.bias ff"),
    mutant("iquestcoder", "interleaved pairs", "c", *KEYS),
    mutant("iquestcoder", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant("hyperclovax", "rotated behind the branches' norms", "res", *ROTATED_UNDER_GAINS),
    mutant(
        "hyperclovax", "the branch's gain forgotten", "res", "post_norm1.weight diag(res) => post_norm1.weight rows"
    ),
    mutant("eurobert", "key not dual", "c", "(kv c' pair) => (kv c pair)"),
    mutant(
        "eurobert",
        "key bias under RoPE",
        "kb",
        "shift vb:  => shift kb: layers.{l}.self_attn.k_proj.bias\nshift vb: ",
    ),
    mutant(
        "helium",
        "half-split pairs",
        "c",
        "[pair c | rest] => [c pair | rest]",
        "[pair c' | rest'] => [c' pair | rest']",
    ),
    mutant(
        "helium",
        "half of a head turned",
        "rest",
        "partial_rotary_factor or 1) // 2 => partial_rotary_factor or 0.5) // 2",
    ),
    mutant("jais2", "gains stored less one", "n1", "size offset = 0\n => size offset = 1\n"),
    mutant("jais2", "a factor through a square", "u", "SquaredScale[l, ff] => PositiveScale[l, ff]"),
    mutant(
        "jais2",
        "half of a head turned",
        "rest",
        "partial_rotary_factor or 1) // 2 => partial_rotary_factor or 0.5) // 2",
    ),
    mutant(
        "nanochat",
        "a complex number under norms",
        "c",
        "space c as qk: Turn[l, kv, pair] => space c as qk: Complex[l, kv, pair]",
    ),
    mutant(
        "nanochat",
        "interleaved pairs",
        "c",
        "(kv g c pair) => (kv g pair c)",
        "(kv c' pair) => (kv pair c')",
    ),
    mutant(
        "persimmon",
        "biases past the factors",
        "t",
        "q_layernorm.bias [c pair t | rest rt] => q_layernorm.bias [c pair | rest rt]",
    ),
    mutant(
        "persimmon",
        "a permutation of the rest per head",
        "rest",
        "space rest as qk: Perm[l] if => space rest as qk: Perm[l, h] if",
        "layernorm.weight [c pair t | rest rt] => layernorm.weight rows",
        "layernorm.bias [c pair t | rest rt] => layernorm.bias rows",
        "layernorm.weight [c pair t' | rest rt'] => layernorm.weight rows",
        "layernorm.bias [c pair t' | rest rt'] => layernorm.bias rows",
        "shift nb: layers.{l}.self_attn.k_layernorm.bias#1 if normed and rest > 0\n => ",
        "space t as qk: Scale[l, pair] if normed\n => ",
        "space rt as qk: Scale[l, rest] if normed and rest > 0\n => ",
    ),
    mutant("persimmon-plain", "key bias free where it is rotated", "kb", "bias#3 if not => bias#2 if not"),
    mutant("persimmon-plain", "a factor through a square", "u", "SquaredScale[l, ff] => PositiveScale[l, ff]"),
    mutant(
        "apertus",
        "a factor per coordinate before the rotation",
        "t",
        "Scale[l, pair] if not behind => Scale[l, c, pair] if not behind",
    ),
    mutant("apertus", "a factor through xIELU", "u", "size u = 1\n => space u as scale: Scale[l, ff]\n"),
    mutant(
        "apertus",
        "hidden neurons not permuted",
        "ff",
        "down_proj.weight res (ff u') => down_proj.weight res neurons",
    ),
    mutant(
        "hrm_text",
        "gates behind queries",
        "ov",
        "[h ov | h c pair | h c' pair | h ov] => [h c pair | h c' pair | h ov | h ov]",
    ),
    mutant(
        "hrm_text",
        "any matrix on gated values",
        "lov",
        "space lov as ov: Perm[m, lh] => space lov as ov: GL[m, lh]",
    ),
    mutant("hrm_text", "the first state forgotten", "res", "z_L_init res => z_L_init start"),
    mutant(
        "bitnet",
        "any matrix in front of a norm",
        "ov",
        "ov: SignedPerm[l, kv] folded O => ov: GL[l, kv]",
        "attn_sub_norm.weight diag(kv g ov) => attn_sub_norm.weight gains",
        "res (kv g ov) => res (kv g ov')",
    ),
    mutant(
        "bitnet",
        "signs through a gain",
        "ov",
        "attn_sub_norm.weight diag(kv g ov ag) => attn_sub_norm.weight (kv g ov ag)",
    ),
    mutant(
        "bitnet",
        "factors in front of a norm",
        "us",
        "us as scale: Sign => us as scale: Scale",
        "size us = 1\n => ",
        "(ff us fg') => (ff us' fg')",
    ),
    mutant(
        "bitnet",
        "the norm's gain keeps the order of neurons",
        "ff",
        "ffn_sub_norm.weight (ff fg) => ffn_sub_norm.weight neurons",
        "space fg as scale: Scale[l, ff]\n => ",
        "(ff us fg') => (ff us)",
    ),
    mutant(
        "diffllama", "any matrix behind the norm of a pair", "ov", "space ov: O[l, m, kv] => space ov: GL[l, m, kv]"
    ),
    mutant("diffllama", "halves slow in the output", "ov", "(kv g m ov') => (m kv g ov')"),
    mutant(
        "diffllama",
        "neighbours are pairs",
        "kv",
        "(m kv g c pair) => (kv m g c pair)",
        "(m kv c' pair) => (kv m c' pair)",
        "(m kv ov) => (kv m ov)",
    ),
    mutant(
        "doge", "the mask past the values", "ov", "dt_proj.weight place (kv ov') => dt_proj.weight place columns"
    ),
    mutant("doge", "gains not dual", "t", "k_norm.weight (c pair t') => k_norm.weight (c pair t)"),
    mutant(
        "doge",
        "rotated under factors of the stream",
        "res",
        "residual res: SignedPerm => residual res: O",
        "diag(res) => res",
        "diag(res n1) => (res n1)",
        "diag(res n2) => (res n2)",
        "diag(res nf) => (res nf)",
    ),
    mutant(
        "doge-routed",
        "experts past the stream",
        "res",
        "down_embed.weight experts (res n2)' => down_embed.weight experts other",
    ),
]
