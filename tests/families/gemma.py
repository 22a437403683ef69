"""Gemma's language models."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_models import causal
from toy_settings import (
    CAUSAL,
    DECODER_CLASSES,
    GEMMA3N,
    GEMMA4,
    GEMMA4_ROUTED,
    HEADS,
    LANGUAGE_MODELS,
    LAYERS,
    TIED,
    TWO,
    UNIFIED,
)

VECTORS = (
    "diag(res) - 1 => res",
    "diag(res n1) - 1 => (res n1)",
    "diag(res n2) - 1 => (res n2)",
    "diag(res nf) - 1 => (res nf)",
)
COMPLEX_UNDER_NORMS = (
    "size sg = 1\n => ",
    "size c = 2\n => ",
    "space sg as qk: Sign[l, kv, pair] => space c as qk: Complex[l, kv, pair]",
    "space t as qk: Scale[l, pair]\n => ",
    "_norm.weight (c pair t) - 1 => _norm.weight gain",
    "_norm.weight (c pair t') - 1 => _norm.weight gain",
    "(kv g c pair sg) => (kv g c pair)",
    "(kv c pair sg') => (kv c' pair)",
)
GRIFFIN: dict[str, Any] = {
    **HEADS, "intermediate_size": 80, "lru_width": 60, "attention_window_size": 4, "block_types": ["recurrent", "attention"], "attention_bias": True,
}  # fmt: skip

TOYS: dict[str, Toy] = {
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
}

MORE_TOYS: dict[str, Toy] = {
    "vaultgemma": (lambda: causal("VaultGemma", TWO, layer_types=LAYERS, sliding_window=4), 1e-5),
    "gemma3n_text": (lambda: tf.Gemma3nForCausalLM(tf.Gemma3nTextConfig(**GEMMA3N)), 1e-5),
    "gemma4_text": (lambda: tf.Gemma4ForCausalLM(tf.Gemma4TextConfig(**GEMMA4)), 1e-5),
    "gemma4_text-routed": (lambda: tf.Gemma4ForCausalLM(tf.Gemma4TextConfig(**GEMMA4_ROUTED)), 1e-5),
    "recurrent_gemma": (lambda: causal("RecurrentGemma", GRIFFIN), 1e-5),
    "recurrent_gemma-tied": (lambda: causal("RecurrentGemma", GRIFFIN, tie_word_embeddings=True), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Gemma": (TIED, DECODER_CLASSES[:-1]),
    "Gemma2": (TIED, DECODER_CLASSES[:-1]),
    "Gemma3Text": (TIED, ["Model", "ForSequenceClassification"]),
}

MORE_NAMES: dict[str, Saved] = {
    "VaultGemma": (TWO, LANGUAGE_MODELS),
    "Gemma3nText": (GEMMA3N, ["Model"]),
    "Gemma4Text": (GEMMA4, ["Model"]),
    "Gemma4UnifiedText": (UNIFIED, ["Model"]),
    "RecurrentGemma": (GRIFFIN, LANGUAGE_MODELS),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["gemma", "gemma2", "gemma3_text", "gemma4_text-routed", "recurrent_gemma-tied"], "SignedPerm"),
    **dict.fromkeys(["gemma-untied", "vaultgemma", "recurrent_gemma"], "O"),
    **{key: {"res": "SignedPerm", "pl": "Perm"} for key in ["gemma3n_text", "gemma4_text"]},
}

IDLE = {
    ("gemma", "vb"),
    ("gemma-untied", "vb"),
    ("gemma2", "vb"),
    ("gemma3_text", "vb"),
    ("vaultgemma", "vb"),
}

MUTANTS = [
    mutant("gemma", "gains stored as they act", "n1", "diag(res n1) - 1 => diag(res n1)"),
    mutant("gemma-untied", "the last gain stored as it acts", "nf", "diag(res nf) - 1 => diag(res nf)"),
    mutant("gemma", "interleaved pairs", "c", "(kv g c pair) => (kv g pair c)", "(kv c' pair) => (kv pair c')"),
    mutant("gemma2", "rotated behind the branches' norms", "res", "res: SignedPerm => res: O", *VECTORS),
    mutant("gemma3_text", "a factor in gains as they are stored", "t", "(c pair t) - 1 => (c pair t)"),
    mutant("gemma3_text", "the key's gain not dual", "t", "(c pair t') - 1 => (c pair t) - 1"),
    mutant("gemma3_text", "rotations despite q/k norms", "c", *COMPLEX_UNDER_NORMS),
    mutant("gemma3_text", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant("vaultgemma", "gains stored as they act", "n2", "diag(res n2) - 1 => diag(res n2)"),
    mutant("vaultgemma", "key not dual", "c", "(kv c' pair) => (kv c pair)"),
    mutant(
        "gemma3n_text",
        "a copy in another basis",
        "res",
        "altup_projections.{i}.weight res res' => altup_projections.{i}.weight elsewhere res'",
    ),
    mutant("gemma3n_text", "the bypass not dual", "lau", "res lau' => res lau"),
    mutant(
        "gemma3n_text",
        "the norm's output added past its scale",
        "n1",
        "residual n2: => residual n1: Scale[l, res]\nresidual n2:",
        "input_layernorm.weight diag(res) => input_layernorm.weight diag(res n1)",
        "(kv g c pair sg) res' => (kv g c pair sg) (res n1)'",
        "(kv c pair sg) res' => (kv c pair sg) (res n1)'",
        "(kv ov) res' => (kv ov) (res n1)'",
        "lau res' => lau (res n1)'",
    ),
    *(
        edited
        for toy, space, reads in (
            ("gemma3n_text", "residual pl: Perm", "res'"),
            ("gemma4_text", "residual pl: Perm if pl > 0", "(res rn1)'"),
        )
        for edited in (
            mutant(
                toy,
                "readers keep their order of heads",
                "kv",
                f"{{l:keyed[-1],read}}.self_attn.q_proj.weight (kv rg c pair sg) {reads} => {{l:keyed[-1],read}}.self_attn.q_proj.weight rows {reads}",
            ),
            mutant(toy, "keys of another layer are read", "kv", "{l:keyed[-1],read} => {l:keyed[0],read}"),
            mutant(toy, "values of another layer are read", "ov", "{l:keyed[-1],read} => {l:keyed[0],read}"),
            mutant(
                toy,
                "readers write through the heads of the one that they read",
                "rg",
                "space rg as g: Perm[l, read, kv] => space rg as g: Perm[l, kv]",
                "(kv rg ov') => (kv g ov')",
            ),
            mutant(toy, "gains of queries and keys not dual", "t", "(c pair t') => (c pair t)"),
            mutant(
                toy, "a sign per coordinate where pairs rotate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"
            ),
            mutant(toy, "any matrix behind the norm of values", "ov", "space ov: O[l, kv] => space ov: GL[l, kv]"),
            mutant(
                toy,
                "gates of what layers add in another order",
                "pl",
                "per_layer_input_gate.weight pl => per_layer_input_gate.weight rows",
            ),
            mutant(toy, "signs through gates", "pl", f"{space} => {space.replace(': Perm', ': SignedPerm')}"),
            mutant(
                toy,
                "factors through gates",
                "pt",
                "per_layer_input_gate.weight pl => per_layer_input_gate.weight (pl pt)",
            ),
        )
    ),
    mutant(
        "gemma4_text",
        "a sign per coordinate of wide heads where pairs rotate",
        "fsg",
        "Sign[l, fkv, fpair] => Sign[l, fkv, c, fpair]",
    ),
    mutant("gemma4_text", "pairs that rotate come last", "osg", "c [fpair fsg | o osg] => c [o osg | fpair fsg]"),
    mutant(
        "gemma4_text",
        "factors forgotten where readers do not rotate",
        "ot",
        "{l:fkeyed[-1],fread}.self_attn.q_norm.weight (c [fpair ft | o ot]) => {l:fkeyed[-1],fread}.self_attn.q_norm.weight rows",
    ),
    mutant(
        "gemma4_text-routed",
        "signs of keys that are values not turned back",
        "fsg",
        "res (fkv fg c [fpair fsg | o osg])' if alike => res (fkv fg fov)' if alike",
    ),
    mutant("gemma4_text", "gains stored less one", "n1", "diag(res n1) => diag(res n1) - 1"),
    mutant(
        "gemma4_text",
        "what layers add past the stream",
        "res",
        "per_layer_model_projection.weight (depth pl) res' => per_layer_model_projection.weight (depth pl) other",
    ),
    mutant(
        "gemma4_text-routed",
        "the router past its gains",
        "nr",
        "router.proj.weight e (res nr)' => router.proj.weight e res'",
    ),
    mutant(
        "gemma4_text-routed", "factors of experts forgotten", "e", "per_expert_scale e => per_expert_scale rows"
    ),
    mutant("gemma4_text-routed", "gate and up mistaken", "xu", "[xff | xff xu] => [xff xu | xff]"),
    mutant(
        "recurrent_gemma",
        "channels cross blocks",
        "lru",
        "rg_lru.input_gate_weight b lru lru => rg_lru.input_gate_weight b lru out",
    ),
    mutant(
        "recurrent_gemma",
        "blocks of the gates keep their places",
        "b",
        "rg_lru.recurrent_gate_bias b lru => rg_lru.recurrent_gate_bias rows *",
        "recurrent_gate_bias rows * => recurrent_gate_bias rows columns",
    ),
    mutant(
        "recurrent_gemma",
        "factors through a recurrence",
        "ru",
        "space ff: => space ru as scale: Scale[l, b, lru]\nspace ff:",
        "linear_x.weight (b lru) => linear_x.weight (b lru ru)",
        "linear_x.bias (b lru) => linear_x.bias (b lru ru)",
        "linear_out.weight res (b lru) => linear_out.weight res (b lru ru')",
    ),
    mutant("recurrent_gemma", "gains stored as they are", "n1", "diag(res n1) - 1 => diag(res n1)"),
]

STREAM_MUTANTS = [
    StreamMutant(
        "gemma-untied",
        "gains folded as they are stored",
        "O",
        (
            "diag(res n1) - 1 => diag(res n1)",
            "diag(res n2) - 1 => diag(res n2)",
            "diag(res nf) - 1 => diag(res nf)",
        ),
    ),
]
