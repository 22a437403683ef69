"""Tencent's Hunyuan."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_models import causal
from toy_settings import (
    CHOOSING,
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    IMAGE,
    KNOWN,
    LANGUAGE_MODELS,
    LATENT_EXPERTS,
    MIXED,
    TWO,
)

HY3: dict[str, Any] = {
    **MIXED, "num_shared_experts": 2, "attention_bias": True, "mlp_bias": True, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
HUNYUAN_EYE: dict[str, Any] = {
    "hidden_size": 30, "intermediate_size": 44, "num_attention_heads": 5, "num_hidden_layers": 2, "patch_size": 2, "max_image_size": 12,
    "min_image_size": 4,
}  # fmt: skip


def _hunyuan_vl(**changes: Any) -> Any:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 3.0, "factor": 1.0, "mrope_section": [2, 1, 1]}
    text = {**TWO, "rope_parameters": rope, **changes}
    config = tf.HunYuanVLConfig(
        text_config=text, vision_config=HUNYUAN_EYE, image_token_id=IMAGE, tie_word_embeddings=False
    )
    return tf.HunYuanVLForConditionalGeneration(config)


def _ruled(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, whose rows end in a token of their own."""
    ids = torch.randint(4, 60, (3, 14), generator=rng)
    ids[:, 1:9] = IMAGE
    return {
        "input_ids": ids, "pixel_values": torch.randn((3 * 16, 3 * 2 * 2), generator=rng, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 3), "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


HUNYUAN: dict[str, Any] = {
    **{k: v for k, v in LATENT_EXPERTS.items() if k not in ("n_group", "topk_group", "first_k_dense_replace")}, **KNOWN, **CHOOSING, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "indexer_types": ["full", "full", "shared"], "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 3, "swiglu_limit": 0.5, "index_head_dim": 9,
}  # fmt: skip


def _hunyuan(**changes: Any) -> Any:
    return tf.HYV4ForCausalLM(tf.HYV4Config(**{**HUNYUAN, **changes}))


MORE_TOYS: dict[str, Toy] = {
    "hunyuan_v1_dense": (lambda: causal("HunYuanDenseV1", TWO, attention_bias=True), 1e-5),
    "hunyuan_v1_moe": (lambda: causal("HunYuanMoEV1", TWO, num_experts=4, moe_topk=2, attention_bias=True), 1e-5),
    "hy_v3": (lambda: causal("HYV3", HY3), 1e-5),
    "hunyuan_vl": (_hunyuan_vl, 1e-5),
    "hy_v4": (_hunyuan, 1e-5),
    "hy_v4-groups": (lambda: _hunyuan(attention_bias=True, n_group=2, topk_group=1), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "HunYuanDenseV1": (TWO, CLASSIFYING_LANGUAGE_MODELS),
    "HunYuanMoEV1": ({**TWO, "num_experts": 4}, CLASSIFYING_LANGUAGE_MODELS),
    "HYV3": (HY3, LANGUAGE_MODELS),
    "HunYuanVLText": (TWO, []),
    "HunYuanVL": ({"text_config": TWO, "vision_config": HUNYUAN_EYE}, COMPOSED_MODELS),
    "HYV4": ({**HUNYUAN, "attention_bias": True}, ["Model", "ForCausalLM"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3"], "O"),
    "hunyuan_vl": {"res": "SignedPerm", "vres": "OFixingOnes", "wide": "O"},
    **{key: {"res": "O", "copy": "Perm"} for key in ["hy_v4", "hy_v4-groups"]},
}

IDLE = {
    ("hunyuan_vl", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "hunyuan_vl": _ruled,
}

CONVERTED = {"hunyuan_v1_moe", "hy_v3", "hy_v4", "hy_v4-groups"}

MUTANTS = [
    mutant(
        "hunyuan_v1_moe",
        "router forgotten",
        "e",
        "(wg.|)weight e (res n2)' => (wg.|)weight rows (res n2)'",
    ),
    mutant(
        "hunyuan_v1_moe",
        "a shared gate scaled",
        "su",
        "shared_expert).gate_proj.weight sff => shared_expert).gate_proj.weight (sff su)",
    ),
    mutant(
        "hunyuan_v1_dense",
        "gains not dual",
        "t",
        "key_layernorm.weight (c pair t') => key_layernorm.weight (c pair t)",
    ),
    mutant("hunyuan_v1_dense", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant("hy_v3", "the router's bias forgotten", "e", "expert)_bias (eg e) => expert)_bias rows"),
    mutant("hy_v3", "shared experts' bias not scaled", "su", "up_proj.bias (sff su) => up_proj.bias sff"),
    mutant(
        "hunyuan_vl",
        "a factor through the norm behind the projector",
        "nf",
        "after_rms.weight diag(res) => after_rms.weight diag(res nf)",
    ),
    mutant("hunyuan_vl", "the end of a row forgotten", "wide", "image_newline wide => image_newline piece"),
    mutant(
        "hunyuan_vl",
        "the beginning of an image in other coordinates",
        "res",
        "image_begin res => image_begin other",
    ),
    mutant(
        "hy_v4",
        "copies that are read in other places",
        "copy",
        "hc_fn) (copy hf) (copy res)' => hc_fn) (rows hf) (copy res)'",
        "size vocab => size rows = copy\nsize vocab",
    ),
    mutant(
        "hy_v4",
        "copies that are written in other places",
        "copy",
        "hc_attn_layer.hc_base [copy | copy] => hc_attn_layer.hc_base [copy | rows]",
        "size vocab => size rows = copy\nsize vocab",
    ),
    mutant(
        "hy_v4",
        "what copies are read by, scaled alone",
        "ra",
        "hc_attn_layer.hc_scale [ra' | wa'] => hc_attn_layer.hc_scale 2",
    ),
    mutant(
        "hy_v4",
        "any matrix on gated values",
        "ov",
        "space ov: Perm[l, h] => space ov: GL[l, h]",
        "space os as scale: Scale[l, h, ov]\n => ",
        "[nope' | ov os] => [nope' | ov]",
        "(h ov' os') => (h ov')",
        "(h ov) (res n1)' => gates (res n1)'",
    ),
    mutant("hy_v4", "gates scaled with their values", "os", "(h ov) (res n1)' => (h ov os) (res n1)'"),
    mutant("hy_v4", "sinks forgotten", "h", "sinks) h => sinks) rows"),
    mutant(
        "hy_v4",
        "pairs as neighbours",
        "c",
        "(h [nope | c pair]) => (h [nope | pair c])",
        "[lat | c' pair] => [lat | pair c']",
    ),
    mutant(
        "hy_v4",
        "factors where experts are cut off",
        "u",
        "u as scale: Sign => u as scale: Scale",
        "size u = 1\n => ",
    ),
    mutant(
        "hy_v4",
        "keys of the choice without their norm's bias",
        "it",
        "k_norm.bias [irest jt | ic ipair it] => k_norm.bias [irest jt | ic ipair]",
    ),
]
