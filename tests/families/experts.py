"""Mixtures of experts of other makers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words
from toy_models import ahead, causal
from toy_settings import (
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    HEADS,
    IMAGE,
    KNOWN,
    LANGUAGE_MODELS,
    LAYERS,
    MIXED,
    ROUTED_BY_GROUP,
    TEXT,
    TOWER,
    TWO,
    Inputs,
)

AFMOE: dict[str, Any] = {
    **MIXED, "num_shared_experts": 2, "num_dense_layers": 1, "layer_types": LAYERS, "sliding_window": 4, "mup_enabled": True,
    "attention_bias": True,
}  # fmt: skip
JET: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k not in ("head_dim", "num_attention_heads")}, "kv_channels": 8, "num_key_value_heads": 3,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
STEP: dict[str, Any] = {
    **TEXT, **KNOWN, "num_attention_heads": 4, "num_hidden_layers": 3, "num_sliding_attention_heads": 6, "moe_intermediate_size": 20, "share_expert_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse", "sparse"], "sliding_window": 4,
    "swiglu_limits": [0.0, 0.0, 0.6], "swiglu_limits_shared": [0.0, 0.6, 0.0], "moe_router_scaling_factor": 1.5,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip
STEP_EYE: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "mlp_ratio": 0.75, "image_size": 8, "patch_size": 2, "max_position_embeddings": 16,
}  # fmt: skip


def _step(**changes: Any) -> Any:
    config = tf.Step3p7Config(
        text_config=STEP, vision_config=STEP_EYE, image_token_id=IMAGE, tie_word_embeddings=False, **changes
    )
    return tf.Step3p7ForConditionalGeneration(config)


def _in_pixels(pieces: int) -> Callable[[Any, torch.Generator], Inputs]:
    """Images of which so many tokens stand in the text."""
    return lambda _, rng: {"input_ids": drawn_words(rng, pieces), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8)}


TWO_ROPES: dict[str, Any] = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
MELLUM: dict[str, Any] = {
    **{k: v for k, v in MIXED.items() if k != "num_experts"}, "num_local_experts": 4, "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True,
    "mlp_layer_types": ["dense", "sparse"], "rope_parameters": TWO_ROPES,
}  # fmt: skip
MIMO: dict[str, Any] = {
    **TWO, "v_head_dim": 6, "head_dim": 10, "n_routed_experts": 6, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True,
    "num_attention_heads": 8, "num_key_value_heads": 2, "mlp_layer_types": ["dense", "sparse"],
    "rope_parameters": {kind: {**each, "partial_rotary_factor": 0.64} for kind, each in TWO_ROPES.items()},
}  # fmt: skip
LAGUNA: dict[str, Any] = {
    **MIXED, "shared_expert_intermediate_size": 24, "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True,
    "num_attention_heads_per_layer": [8, 6], "mlp_layer_types": ["dense", "sparse"], "moe_routed_scaling_factor": 1.4,
    "moe_router_logit_softcapping": 2.0,
    "rope_parameters": {kind: {**each, "partial_rotary_factor": part} for (kind, each), part in zip(TWO_ROPES.items(), (0.5, 1.0), strict=True)},
}  # fmt: skip


def _mellum_ahead() -> Any:
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    beside = {f"mtp.{name}.weight": "model.norm.weight" for name in norms} | {"mtp.fc.weight": "fused"}
    model = causal("Mellum", MELLUM, attention_bias=False)
    return ahead(model, "model.layers.1.", "mtp.layers.0.", beside)


ARIA: dict[str, Any] = {**HEADS, "intermediate_size": 20, "moe_num_experts": 4, "moe_num_shared_experts": 2}
ARIA_SEEN: dict[str, Any] = {
    "vision_config": {**TOWER, "model_type": "idefics3_vision"},
    "projector_patch_to_query_dict": {9: 3, 16: 5},
}


def _aria(**changes: Any) -> Any:
    config = tf.AriaConfig(text_config={**ARIA, **changes}, image_token_index=IMAGE, **ARIA_SEEN)
    return tf.AriaForConditionalGeneration(config)


ZAYA: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k != "intermediate_size"}, "num_attention_heads": 8, "num_key_value_heads": 4, "num_experts": 4,
    "moe_intermediate_size": 20, "router_hidden_size": 18, "attention_bias": True, "lm_head_bias": True, "sliding_window": 4,
    "layer_types": ["hybrid", "hybrid_sliding"],
}  # fmt: skip
FLINT: dict[str, Any] = {
    **MIXED, "num_hidden_layers": 3, "shared_expert_intermediate_size": 24, "mlp_only_layers": [0], "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
KOLIBRI: dict[str, Any] = {
    **{k: v for k, v in MIXED.items() if k != "intermediate_size"}, "shared_expert_intermediate_size": 24, "layer_types": LAYERS, "sliding_window": 4,
}  # fmt: skip


def _queried(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, of which learned queries make five tokens."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1:6] = IMAGE
    return {"input_ids": ids, "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)}


MORE_TOYS: dict[str, Toy] = {
    "dots1": (lambda: causal("Dots1", ROUTED_BY_GROUP, n_routed_experts=6), 1e-5),
    "solar_open": (
        lambda: causal(
            "SolarOpen",
            {k: v for k, v in ROUTED_BY_GROUP.items() if k != "first_k_dense_replace"},
            n_routed_experts=6,
        ),
        1e-5,
    ),
    "afmoe": (lambda: causal("Afmoe", AFMOE), 1e-5),
    "jetmoe": (lambda: causal("JetMoe", JET), 1e-5),
    "mellum": (lambda: causal("Mellum", MELLUM), 1e-5),
    "mellum-ahead": (_mellum_ahead, 1e-5),
    "mimo_v2_flash": (lambda: causal("MiMoV2Flash", MIMO), 1e-5),
    "laguna": (lambda: causal("Laguna", LAGUNA), 1e-5),
    "laguna-each": (lambda: causal("Laguna", LAGUNA, gating="per-element"), 1e-5),
    "aria": (_aria, 1e-5),
    "flint": (lambda: tf.FlintForCausalLM(tf.FlintConfig(**FLINT)), 1e-5),
    "kolibri1": (lambda: tf.Kolibri1ForCausalLM(tf.Kolibri1Config(**KOLIBRI)), 1e-5),
    "zaya": (lambda: tf.ZayaForCausalLM(tf.ZayaConfig(**ZAYA)), 1e-5),
    "aria_text": (
        lambda: tf.AriaTextForCausalLM(tf.AriaTextConfig(**ARIA, attention_bias=True, mlp_bias=True)),
        1e-5,
    ),
    "step3p7": (_step, 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Dots1": ({**ROUTED_BY_GROUP, "n_routed_experts": 6}, LANGUAGE_MODELS),
    "SolarOpen": (
        {**{k: v for k, v in ROUTED_BY_GROUP.items() if k != "first_k_dense_replace"}, "n_routed_experts": 6},
        LANGUAGE_MODELS,
    ),
    "Afmoe": (AFMOE, LANGUAGE_MODELS),
    "JetMoe": (JET, CLASSIFYING_LANGUAGE_MODELS),
    "Laguna": (LAGUNA, LANGUAGE_MODELS),
    "Mellum": (MELLUM, LANGUAGE_MODELS),
    "MiMoV2Flash": (MIMO, LANGUAGE_MODELS),
    "AriaText": (ARIA, LANGUAGE_MODELS),
    "Flint": (FLINT, LANGUAGE_MODELS),
    "Kolibri1": (KOLIBRI, LANGUAGE_MODELS),
    "Zaya": (ZAYA, LANGUAGE_MODELS),
    "Aria": ({"text_config": ARIA, **ARIA_SEEN}, COMPOSED_MODELS),
    "Step3p7": (
        {"text_config": STEP, "vision_config": STEP_EYE, "image_token_id": IMAGE, "projector_bias": True},
        COMPOSED_MODELS,
    ),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["dots1", "solar_open", "jetmoe", "mellum", "mimo_v2_flash", "laguna", "laguna-each"], "O"),
    "afmoe": "SignedPerm",
    "mellum-ahead": {},
    "aria": {"res": "O", "vision_res": "Perm"},
    **{key: {"res": "O"} for key in ["flint", "aria_text"]},
    "kolibri1": {"res": "SignedPerm"},
    "zaya": {"res": "SignedPerm", "rres": "SignedPerm"},
    "step3p7": {"res": "O", "vres": "Perm", "down1": "O", "down2": "O"},
}

IDLE = {
    ("aria", "vb"),
    ("mellum-ahead", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "aria": _queried,
    "step3p7": _in_pixels(1),
}

CONVERTED = {
    "dots1",
    "solar_open",
    "afmoe",
    "mellum",
    "mellum-ahead",
    "mimo_v2_flash",
    "laguna",
    "laguna-each",
    "flint",
    "kolibri1",
    "step3p7",
}

MUTANTS = [
    mutant(
        "dots1",
        "a factor on gate and up",
        "u",
        "experts.{eg,e}.gate_proj.weight ff => experts.{eg,e}.gate_proj.weight (ff u)",
    ),
    mutant(
        "dots1",
        "half of a head turned",
        "rs",
        "partial_rotary_factor or 1) // 2 => partial_rotary_factor or 0.5) // 2",
    ),
    mutant(
        "solar_open",
        "interleaved pairs",
        "c",
        "(kv g [c pair sg | rest rs]) => (kv g pair c)",
        "(kv [c' pair sg' | rest' rs']) => (kv pair c')",
    ),
    mutant(
        "solar_open",
        "experts leave their group",
        "e",
        "space e as expert: Perm[l, eg] if eg > 1 => space e as expert: Perm[l] if eg > 1",
        "space eg as expert: Perm[l] if eg > 1 => ",
        "size eg = n_group or 1 => size eg = 1",
    ),
    mutant(
        "afmoe",
        "values without their gates",
        "ov",
        "gate_proj.weight (kv g ov) => gate_proj.weight (kv g gates)",
        "size vocab => size gates = ov\nsize vocab",
    ),
    mutant("afmoe", "a gate's factor", "os", "gate_proj.weight (kv g ov) => gate_proj.weight (kv g ov os)"),
    mutant("afmoe", "a value's factor that is not undone", "os", "(kv g ov' os') => (kv g ov')"),
    mutant("afmoe", "the router's bias forgotten", "e", "expert_bias e => expert_bias rows"),
    mutant(
        "afmoe",
        "rotated behind the branches' norms",
        "res",
        "residual res: SignedPerm => residual res: O",
        "diag(res) => res",
        "diag(res n1) => (res n1)",
        "diag(res n2) => (res n2)",
        "diag(res nf) => (res nf)",
    ),
    mutant(
        "jetmoe",
        "experts of attention past their router",
        "a",
        "experts.router.layer.weight a => experts.router.layer.weight rows",
    ),
    mutant("jetmoe", "key and value fused head by head", "kv", "[kv c' pair | kv ov] => (kv [c' pair | ov])"),
    mutant("jetmoe", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("mellum", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant(
        "mellum",
        "router forgotten",
        "e",
        "gate.(wg.|)weight e (res n2)' => gate.(wg.|)weight rows (res n2)'",
    ),
    mutant("mimo_v2_flash", "sinks forgotten", "nkv", "sinks) (nkv ng) => sinks) rows"),
    mutant(
        "mimo_v2_flash",
        "as many key-value heads turned as a whole",
        "nc",
        "[nc npair | nrest] => [nc npair | rows]",
        "[nc' npair | nrest'] => [rows | nc' npair]",
        "space nrest as qk: GL[l, nkv] if near and nrest > 0 => ",
        "size nov = => size rows = nrest\nsize nov =",
    ),
    mutant(
        "mimo_v2_flash",
        "the stream between experts and router",
        "n2",
        "gate.weight (eg e) (res n2)' => gate.weight (eg e) res'",
    ),
    mutant("laguna", "gates forgotten", "ng", "g_proj.weight (nkv ng) => g_proj.weight rows"),
    mutant(
        "laguna",
        "all of a head turned",
        "rs",
        "space rs as qk: Sign[l, kv, rest] => space rs as qk: Scale[l, kv, rest]",
    ),
    mutant(
        "laguna-each",
        "any matrix on gated values",
        "ov",
        "space ov: Perm[l, kv] if full and not whole => space ov: GL[l, kv] if full and not whole",
        "g_proj.weight (kv g ov) (res n1)' => g_proj.weight (kv g gates) (res n1)'",
        "size nov = => size gates = ov\nsize nov =",
    ),
    mutant("flint", "sinks forgotten", "kv", "(softmax_offset|sinks) (kv g) => (softmax_offset|sinks) rows"),
    mutant(
        "flint",
        "gates scaled",
        "su",
        "(shared_expert|shared_experts).gate_proj.weight sff => (shared_expert|shared_experts).gate_proj.weight (sff su)",
    ),
    mutant(
        "kolibri1",
        "the router's bias forgotten",
        "e",
        "e_score_correction_bias) e => e_score_correction_bias) rows",
    ),
    mutant("kolibri1", "a sign per coordinate under rotations", "sg", "Sign[l, kv, pair] => Sign[l, kv, pair, c]"),
    mutant("zaya", "a convolution of other coordinates", "rest", "[c sg | rest] width => head width"),
    mutant(
        "zaya",
        "the router's memory in other coordinates",
        "rres",
        "router_states_scale diag(rres) => router_states_scale rows",
    ),
    mutant("zaya", "the balance of experts forgotten", "e", "balancing_biases [e | 1] => balancing_biases classes"),
    mutant("zaya", "keys' factors of other heads", "k", "qk_norm.temp [k | d] => qk_norm.temp kv"),
    mutant(
        "aria",
        "the last norm read",
        "vision_nf",
        "idefics3_vision without nf => idefics3_vision",
        "between (vision_res pn)' => between (vision_res pn vision_nf)'",
    ),
    mutant("aria", "the queries' head by head", "ph", "[ph pqk | ph pqk' | ph pov] => (ph [pqk | pqk' | pov])"),
    mutant(
        "aria_text",
        "the router forgotten",
        "e",
        "router.weight e (res n2)' => router.weight rows (res n2)'",
    ),
    mutant(
        "aria_text",
        "gate and up beside each other",
        "ff",
        "(res n2)' [ff | ff u] => (res n2)' (ff 2)",
        "(ff u') res => ff' res",
        "space u as scale: Scale[l, e, ff] => ",
    ),
    mutant(
        "step3p7",
        "heads of the other layers",
        "g",
        "layers.{l:full}.self_attn.g_proj.weight (kv g) (res n1)' => layers.{l:full}.self_attn.g_proj.weight gates (res n1)'",
        part="step3p5",
    ),
    mutant(
        "step3p7",
        "factors where experts are cut off",
        "cu",
        "cu as scale: Sign => cu as scale: Scale",
        "size cu = 1\n => ",
        part="step3p5",
    ),
    mutant(
        "step3p7",
        "factors where shared experts are cut off",
        "scu",
        "scu as scale: Sign => scu as scale: Scale",
        "size scu = 1\n => ",
        part="step3p5",
    ),
    mutant(
        "step3p7",
        "any factor on normed queries",
        "sg",
        "sg as qk: Sign[l, kv, pair] => sg as qk: Scale[l, kv, pair]",
        "size sg = 1\n => ",
        part="step3p5",
    ),
    mutant(
        "step3p7",
        "gains as they are stored",
        "n1",
        "input_layernorm.weight diag(res n1) - 1 => input_layernorm.weight diag(res n1)",
        part="step3p5",
    ),
    mutant(
        "step3p7",
        "the router's bias forgotten",
        "e",
        "layers.{l:loose}.moe.router_bias e => layers.{l:loose}.moe.router_bias rows",
        part="step3p5",
    ),
    mutant(
        "step3p7",
        "layer scales on the readers' side",
        "vs1",
        "ls_1.gamma diag(vres vs1') => ls_1.gamma diag(vres vs1)",
    ),
    mutant(
        "step3p7",
        "the second convolution's bias forgotten",
        "down2",
        "vit_downsampler2.bias down2 => vit_downsampler2.bias rows",
    ),
    mutant(
        "step3p7",
        "halves of a head turned together",
        "vc",
        "[vh vpair vc | vh vpair vc' | vh vov] => [vh vc vpair | vh vc' vpair | vh vov]",
    ),
]
