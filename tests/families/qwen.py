"""Qwen's language models: dense, with experts, with linear attention."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import transformers as tf
from safetensors.torch import load_file, save_file

from families.tables import Saved, Streams, Toy
from mutants import mutant
from toy_models import causal
from toy_settings import (
    CAUSAL_OF_THREE,
    CLASSIFYING_LANGUAGE_MODELS,
    DECODER_CLASSES,
    EXPERTS,
    NEXT,
    NEXT_MIXED,
    QWEN4,
    SHARED,
    TWO,
)

QWEN3_NEXT: dict[str, Any] = {
    **TWO, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
    "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3,
}  # fmt: skip


def _fused() -> Any:
    """Experts in one tensor, as transformers holds them and Qwen publishes them."""
    model: Any = tf.Qwen3_5MoeForCausalLM(tf.Qwen3_5MoeTextConfig(**NEXT_MIXED))
    model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
    return model


def _ahead() -> Any:
    """A layer that predicts a further token stands beside the others in the file; transformers leaves it out."""
    model: Any = tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**NEXT))

    def save(folder: Path) -> None:
        save_alone(folder)
        held = load_file(folder / "model.safetensors")
        norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        mtp = {f"mtp.{n}.weight": held["model.norm.weight"] + i for i, n in enumerate(norms)}
        mtp["mtp.fc.weight"] = held["lm_head.weight"][:48].repeat(1, 2)
        last = {k: t.clone() for k, t in held.items() if k.startswith("model.layers.1.") and "bias" not in k}
        mtp |= {k.replace("model.layers.1.", "mtp.layers.0."): t for k, t in last.items()}
        save_file(held | mtp, folder / "model.safetensors", metadata={"format": "pt"})

    save_alone, model.save_pretrained = model.save_pretrained, save
    return model


COMPLEX_UNDER_NORMS = (
    "size sg = 1\n => ",
    "size c = 2\n => ",
    "space sg as qk: Sign[l, kv, pair] => space c as qk: Complex[l, kv, pair]",
    "space t as qk: Scale[l, pair] if not behind => ",
    "(q_norm|norm_q).weight (c pair t) => (q_norm|norm_q).weight gain",
    "(k_norm|norm_k).weight (c pair t') => (k_norm|norm_k).weight gain",
    "(kv g c pair sg) => (kv g c pair)",
    "(kv c pair sg') => (kv c' pair)",
)

TOYS: dict[str, Toy] = {
    "qwen2": (lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**CAUSAL_OF_THREE)), 1e-5),
    "qwen3": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**CAUSAL_OF_THREE)), 1e-5),
    "qwen3-biased": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**CAUSAL_OF_THREE, attention_bias=True)), 1e-5),
    "qwen2_moe": (lambda: tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**SHARED)), 1e-5),
    "qwen3_moe": (lambda: tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**EXPERTS, mlp_only_layers=[1])), 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "qwen3_next": (lambda: causal("Qwen3Next", QWEN3_NEXT), 1e-5),
    "qwen3_5_text": (lambda: tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**NEXT)), 1e-5),
    "qwen3_5_moe_text": (lambda: tf.Qwen3_5MoeForCausalLM(tf.Qwen3_5MoeTextConfig(**NEXT_MIXED)), 1e-5),
    "qwen3_5_moe_text-fused": (_fused, 1e-5),
    "qwen3_5_text-ahead": (_ahead, 1e-5),
    "qwen4_exp_text": (lambda: tf.Qwen4ExpForCausalLM(tf.Qwen4ExpTextConfig(**QWEN4)), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Qwen2": (CAUSAL_OF_THREE, DECODER_CLASSES),
    "Qwen3": (CAUSAL_OF_THREE, DECODER_CLASSES),
    "Qwen2Moe": (SHARED, DECODER_CLASSES),
    "Qwen3Moe": ({**EXPERTS, "mlp_only_layers": [1]}, DECODER_CLASSES),
}

MORE_NAMES: dict[str, Saved] = {
    "Qwen3Next": (QWEN3_NEXT, [*CLASSIFYING_LANGUAGE_MODELS, "ForQuestionAnswering"]),
    "Qwen3_5Text": (NEXT, ["Model", "ForSequenceClassification"]),
    "Qwen3_5MoeText": (NEXT_MIXED, ["Model"]),
    "Qwen4ExpText": (QWEN4, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(
        [
            "qwen2",
            "qwen3",
            "qwen3-biased",
            "qwen2_moe",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_5_text",
            "qwen3_5_moe_text",
            "qwen3_5_moe_text-fused",
        ],
        "O",
    ),
    "qwen3_5_text-ahead": {},
}

IDLE = {
    ("qwen2", "vb"),
    ("qwen3", "vb"),
    ("qwen3_moe", "vb"),
}

CONVERTED = {"qwen3_5_moe_text", "qwen4_exp_text", "qwen2_moe", "qwen3_moe", "qwen3_next"}

MUTANTS = [
    mutant(
        "qwen2",
        "q and k biases not moved",
        "c",
        "bias (kv g c pair) => bias rows",
        "bias (kv c' pair) => bias rows",
    ),
    mutant("qwen2", "head bias not moved", "g", "bias (kv g c pair) => bias rows"),
    mutant("qwen3", "rotations despite q/k norms", "c", *COMPLEX_UNDER_NORMS),
    mutant("qwen3", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("qwen3", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant(
        "qwen2_moe",
        "router forgotten",
        "e",
        "gate.weight e (res n2)' => gate.weight rows (res n2)'",
    ),
    mutant("qwen2_moe", "shared expert's gate past the norm", "n2", "1 (res n2)' => 1 res'"),
    mutant(
        "qwen2_moe",
        "scale on gate and up",
        "su",
        "shared_expert.gate_proj.weight sff => shared_expert.gate_proj.weight (sff su)",
    ),
    mutant("qwen3_moe", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("qwen3_moe", "dense gate forgotten", "dff", "mlp.gate_proj.weight dff => mlp.gate_proj.weight rows"),
    mutant(
        "qwen3_next",
        "values without their gates",
        "ov",
        "[c pair sg | rest rs | ov] => [c pair sg | rest rs | gates]",
        "size vocab => size gates = ov\nsize vocab",
    ),
    mutant(
        "qwen3_next",
        "any matrix on gated values",
        "ov",
        "space ov: Perm[l, kv] => space ov: GL[l, kv]",
        "rest rs | ov] => rest rs | gates]",
        "size vocab => size gates = ov\nsize vocab",
    ),
    mutant(
        "qwen3_next",
        "factors in gains as they are stored",
        "rt",
        "[c pair t | rest rt] - 1 => [c pair t | rest rt]",
    ),
    mutant("qwen3_next", "a value's factor that is not undone", "os", "(kv g ov' os') => (kv g ov')"),
    mutant("qwen3_next", "gates before queries", "rs", "[c pair sg | rest rs | ov] => [ov | c pair sg | rest rs]"),
    mutant(
        "qwen3_next",
        "the delta rule past the gain",
        "n1",
        "in_proj_ba.weight (dh [dg | dg]) (res n1)' => in_proj_ba.weight (dh [dg | dg]) res'",
    ),
    mutant(
        "qwen3_next",
        "values of each head for themselves",
        "dv",
        "space dv as ov: Perm[l] => space dv as ov: Perm[l, dh]",
        "space ds as ov: Scale[l, dv]\n => ",
        "norm.weight (dv ds) => norm.weight value",
        "(dh dg dv' ds') => (dh dg dv')",
    ),
    mutant("qwen3_next", "keys turned behind their convolution", "dk", "space dk as qk: Perm => space dk as qk: O"),
    mutant(
        "qwen3_next",
        "decays of other heads",
        "dg",
        "(dh [dg | dg]) => (dh [dg | other])",
        "size vocab => size other = dg\nsize vocab",
    ),
    mutant(
        "qwen3_5_text", "gates before queries", "rs", "[c pair sg | rest rs | ov] => [ov | c pair sg | rest rs]"
    ),
    mutant(
        "qwen3_5_text",
        "the delta rule past the gain",
        "n1",
        "in_proj_z.weight (dh dg dv) (res n1)' => in_proj_z.weight (dh dg dv) res'",
    ),
    mutant(
        "qwen3_5_moe_text",
        "values without their gates",
        "ov",
        "[c pair sg | rest rs | ov] => [c pair sg | rest rs | gates]",
        "size vocab => size gates = ov\nsize vocab",
    ),
    mutant("qwen3_5_moe_text-fused", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant(
        "qwen3_5_moe_text-fused",
        "fused neuron by neuron",
        "ff",
        "[ff | ff u] => (ff 2)",
        "space u as scale: Scale[l, e, ff] if e > 0 => ",
        "(ff u) => ff",
        "(ff u') => ff'",
    ),
    mutant(
        "qwen4_exp_text",
        "signs through the weights per coordinate",
        "res",
        "residual res: Perm => residual res: SignedPerm",
    ),
    mutant(
        "qwen4_exp_text",
        "the copies' coordinates fast",
        "res",
        "hyper_connection_mixer.input_mix_weight_up.weight (stream res) => hyper_connection_mixer.input_mix_weight_up.weight (res stream)",
    ),
    mutant("qwen4_exp_text", "neurons of low rank forgotten", "mlow", "(stream res) mlow' => (stream res) rows"),
    mutant("qwen4_exp_text", "the indexer's key among its queries", "ih", "[ih ix | ix] res' => [ix | ih ix] res'"),
]
