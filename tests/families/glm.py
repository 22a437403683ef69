"""GLM: dense, with experts, with images."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import in_cubes, in_one_grid
from toy_models import behind, causal, composed
from toy_settings import (
    CHOOSING,
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    GRID,
    IMAGE,
    KNOWN,
    KNOWN_CAUSAL,
    LANGUAGE_MODELS,
    LATENT_EXPERTS,
    ROUTED_BY_GROUP,
    ROUTED_LATENT,
    SECTIONS,
    TEXT,
)

ROUTED: dict[str, Any] = {
    **KNOWN_CAUSAL, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5,
}  # fmt: skip
GLM5_TEXT = "glm5_next_text"
GLM_DSA: dict[str, Any] = {
    **ROUTED_LATENT, "mlp_layer_types": ["dense", "sparse"], "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2,
    "indexer_types": ["full", "shared"],
}  # fmt: skip
GLM: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN,
    "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
}  # fmt: skip
GLM_EYES: dict[str, Any] = {
    **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "image_size": 8, "attention_bias": True,
}  # fmt: skip
GLMGA: dict[str, Any] = {
    "text_config": {**GLM, "model_type": "glm4v_text"},
    "vision_config": {**GLM_EYES, "model_type": "glm4v_vision"},
}
PLACED: dict[str, Any] = {
    "image_token_id": IMAGE, "video_token_id": 64, "image_start_token_id": 61, "image_end_token_id": 62, "video_start_token_id": 65,
    "video_end_token_id": 66, "tie_word_embeddings": False,
}  # fmt: skip


def _glmga() -> Any:
    """GLM-4.6V by another name."""
    config = tf.GlmgaConfig(**GLMGA, **PLACED)
    return tf.AutoModelForImageTextToText.from_config(config)


GLM_MOE: dict[str, Any] = {
    **TEXT, **KNOWN, "rope_parameters": GLM["rope_parameters"], "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
GLM4V: dict[str, Any] = {"text_config": {**GLM, "model_type": "glm4v_text"}, "vision_config": GLM_EYES, **PLACED}  # fmt: skip
GLM46V: dict[str, Any] = {"text_config": {**GLM, "model_type": "glm4v_text"}, "vision_config": {**GLM_EYES, "model_type": "glm4v_vision"}, **PLACED}  # fmt: skip
GLM4V_MOE: dict[str, Any] = {"text_config": {**GLM_MOE, "model_type": "glm4v_moe_text"}, "vision_config": GLM_EYES, **PLACED}  # fmt: skip
GLM_OCR: dict[str, Any] = {"text_config": {**GLM, "model_type": "glm_ocr_text"}, "vision_config": GLM_EYES, **PLACED}  # fmt: skip
GLM5: dict[str, Any] = {
    **{k: v for k, v in LATENT_EXPERTS.items() if k not in ("n_group", "topk_group", "first_k_dense_replace", "qk_rope_head_dim")}, **KNOWN, **CHOOSING, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"], "indexer_types": ["full", "full", "shared"], "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 3, "swiglu_limit": 0.5,
    "index_kpool": 2, "linear_head_dim": 8, "linear_num_heads": 3,
}  # fmt: skip
GLM5_WHOLE: dict[str, Any] = {
    "text_config": GLM5, "vision_config": {**GRID, "hidden_size": 60, "intermediate_size": 44, "out_hidden_size": 48, "projection_intermediate_size": 28, "swiglu_limit": 0.5},
    "image_token_id": IMAGE, "video_token_id": 64, "image_start_token_id": 63, "image_end_token_id": 62, "video_start_token_id": 61, "video_end_token_id": 66,
}  # fmt: skip


def _glm5() -> Any:
    return tf.Glm5NextForConditionalGeneration(tf.Glm5NextConfig(**GLM5_WHOLE))


MORE_TOYS: dict[str, Toy] = {
    "glm": (lambda: causal("Glm", KNOWN_CAUSAL), 1e-5),
    "glm4": (lambda: causal("Glm4", KNOWN_CAUSAL, partial_rotary_factor=1.0), 1e-5),
    "glm4_moe": (lambda: causal("Glm4Moe", ROUTED, use_qk_norm=True), 1e-5),
    "glm4_moe-plain": (lambda: causal("Glm4Moe", ROUTED, attention_bias=True, n_group=1), 1e-5),
    "glm4_moe_lite": (lambda: causal("Glm4MoeLite", ROUTED_LATENT), 1e-5),
    "glm4_moe-ahead": (
        lambda: behind(causal("Glm4Moe", ROUTED_BY_GROUP, n_routed_experts=6, use_qk_norm=True)),
        1e-5,
    ),
    "glm_moe_dsa": (lambda: causal("GlmMoeDsa", GLM_DSA, rope_interleave=False), 1e-5),
    "glm4v": (partial(composed, "Glm4v", GLM4V), 1e-5),
    "glm46v": (partial(composed, "Glm46V", GLM46V), 1e-5),
    "glm4v_moe": (partial(composed, "Glm4vMoe", GLM4V_MOE), 1e-5),
    "glm_ocr": (partial(composed, "GlmOcr", GLM_OCR), 1e-5),
    "glmga": (_glmga, 1e-5),
    "glm5_next": (_glm5, 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Glm": (KNOWN_CAUSAL, CLASSIFYING_LANGUAGE_MODELS),
    "Glm4": (KNOWN_CAUSAL, CLASSIFYING_LANGUAGE_MODELS),
    "Glm4Moe": ({**ROUTED, "use_qk_norm": True}, LANGUAGE_MODELS),
    "Glm4MoeLite": (ROUTED_LATENT, LANGUAGE_MODELS),
    "Glm4v": (GLM4V, COMPOSED_MODELS),
    "Glm46V": (GLM46V, COMPOSED_MODELS),
    "Glm4vMoe": (GLM4V_MOE, COMPOSED_MODELS),
    "GlmOcr": (GLM_OCR, COMPOSED_MODELS),
    "Glm4vVision": (GLM_EYES, []),
    "Glm4vMoeVision": (GLM_EYES, []),
    "GlmOcrVision": (GLM_EYES, []),
    "Glm4vText": (GLM, ["Model"]),
    "GlmOcrText": (GLM, ["Model"]),
    "Glm4vMoeText": (GLM_MOE, []),
    "GlmMoeDsa": (GLM_DSA, LANGUAGE_MODELS),
    "Glmga": (GLMGA, []),
    "Glm5Next": ({**GLM5_WHOLE, "text_config": {**GLM5, "attention_bias": True}}, COMPOSED_MODELS),
    "Glm5NextText": (GLM5, ["Model"]),
    "Glm5NextVision": (GLM5_WHOLE["vision_config"], []),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["glm", "glm4_moe", "glm4_moe-plain", "glm4_moe_lite", "glm_moe_dsa"], "O"),
    "glm4": "SignedPerm",
    "glm4_moe-ahead": {},
    **{
        key: {"res": "SignedPerm", "vision_vres": "SignedPerm", "vision_down": "O"}
        for key in ["glm4v", "glm46v", "glmga"]
    },
    "glm4v_moe": {"res": "O", "vision_vres": "SignedPerm", "vision_down": "O"},
    "glm_ocr": {"res": "SignedPerm", "vision_vres": "O", "vision_down": "O"},
    "glm5_next": {"res": "O", "vision_vres": "O", "vision_down": "O"},
}

IDLE = {
    ("glm", "vb"),
    ("glm4", "vb"),
    ("glm46v", "vb"),
    ("glm46v", "vision_vb"),
    ("glm4v", "vb"),
    ("glm4v", "vision_vb"),
    ("glm4v_moe", "vision_vb"),
    ("glm_ocr", "kb"),
    ("glm_ocr", "vb"),
    ("glmga", "vb"),
    ("glmga", "vision_vb"),
}

INPUTS: dict[str, Drawn] = {
    "glm5_next": in_cubes,
    **dict.fromkeys(["glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr"], in_one_grid),
}

CONVERTED = {
    "glm4_moe_lite",
    "glm4_moe-ahead",
    "glm_moe_dsa",
    "glm5_next",
    "glm4_moe",
    "glm4_moe-plain",
    "glm4v_moe",
}

MUTANTS = [
    mutant(
        "glm",
        "half-split pairs",
        "c",
        "[pair c | rest] => [c pair | rest]",
        "[pair c' | rest'] => [c' pair | rest']",
    ),
    mutant("glm", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("glm", "key bias free where it is rotated", "kb", "bias#1 if => bias#0 if"),
    mutant(
        "glm4",
        "rotated behind the branches' norms",
        "res",
        "residual res: SignedPerm folded O => residual res: O",
        "diag(res) => res",
        "diag(res n1) => (res n1)",
        "diag(res n2) => (res n2)",
        "diag(res nf) => (res nf)",
    ),
    mutant(
        "glm4_moe",
        "a complex number under norms",
        "c",
        "Complex[l, kv, pair] if not normed => Complex[l, kv, pair]",
        "[c pair t | rest rt] => [2 pair t | rest rt]",
        "[c pair t' | rest rt'] => [2 pair t' | rest rt']",
        "size c = 2\n => ",
    ),
    mutant("glm4_moe", "gains of the rest not dual", "rt", "rest rt'] => rest rt]"),
    mutant(
        "glm4_moe-plain",
        "the router's bias forgotten",
        "e",
        "(e_score_correction|expert)_bias (eg e) => (e_score_correction|expert)_bias rows",
    ),
    mutant("glm4_moe_lite", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant(
        "glm4_moe_lite",
        "the router's bias forgotten",
        "e",
        "e_score_correction_bias (eg e) => e_score_correction_bias rows",
    ),
    mutant("glm_moe_dsa", "half-split pairs", "c", "size halves = 0\n => size halves = 1\n"),
    mutant(
        "glm_moe_dsa",
        "the indexer's weights forgotten",
        "ih",
        "weights_proj.weight ih (res n1)' => weights_proj.weight rows (res n1)'",
    ),
    mutant(
        "glmga",
        "the last map past its factor",
        "vision_pu",
        "res (vision_project vision_pu') => res vision_project'",
    ),
    mutant(
        "glm4v",
        "interleaved pairs",
        "vision_c",
        "[h c pair | h c' pair | h ov] => [h pair c | h pair c' | h ov]",
        part="glm4v_vision",
    ),
    mutant(
        "glm4v",
        "neurons behind GELU not permuted",
        "vision_neuron",
        "gate_proj.weight project neuron' => gate_proj.weight project other",
        part="glm4v_vision",
    ),
    mutant(
        "glm4v",
        "half-split pairs",
        "c",
        "[pair c | rest] => [c pair | rest]",
        "[pair c' | rest'] => [c' pair | rest']",
        part="glm4v_text",
    ),
    mutant("glm4v", "the last map forgotten", "vision_project", "res (vision_project vision_pu') => res columns"),
    mutant(
        "glm46v",
        "the last map past its factor",
        "vision_pu",
        "res (vision_project vision_pu') => res vision_project'",
    ),
    mutant(
        "glm4v_moe",
        "turned before the MLP alone",
        "vision_down",
        "neuron down' => neuron columns",
        part="glm4v_moe_vision",
    ),
    mutant(
        "glm4v_moe",
        "the rest before the rotated part",
        "rest",
        "[c pair sg | rest rs] => [rest rs | c pair sg]",
        "[c' pair sg' | rest' rs'] => [rest' rs' | c' pair sg']",
        part="glm4v_moe_text",
    ),
    mutant(
        "glm_ocr",
        "factors not dual",
        "vision_t",
        "k_norm.weight (c pair t') => k_norm.weight (c pair t)",
        part="glm_ocr_vision",
    ),
    mutant(
        "glm_ocr",
        "a sign per coordinate",
        "vision_sg",
        "Sign[v, h, pair] => Sign[v, h, c, pair]",
        part="glm_ocr_vision",
    ),
    mutant("glm5_next", "a head's rates forgotten", "lh", "A_log lh => A_log rows", part=GLM5_TEXT),
    mutant(
        "glm5_next",
        "keys that fade at other rates",
        "kc",
        "dt_bias (lh kc) => dt_bias (lh rates)",
        "size vocab => size rates = kc\nsize vocab",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next",
        "values past their convolution",
        "vc",
        "v_conv1d.weight (lh vc) 1 => v_conv1d.weight (lh rows) 1",
        "size vocab => size rows = vc\nsize vocab",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next",
        "any matrix on keys behind a convolution",
        "kc",
        "kc as qk: Perm[l, lh] => kc as qk: GL[l, lh]",
        "k_proj.weight (lh kc) => k_proj.weight (lh kc')",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next",
        "the norm's gain where no factor reads it",
        "vs",
        "res (lh vc' vs') => res (lh vc')",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next",
        "what gates are made of, on one side",
        "ga",
        "g_b_proj.weight (lh vc) ga' => g_b_proj.weight (lh vc) other",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next",
        "what copies are written by, scaled alone",
        "wa",
        "hc_attn_scale [ra' | wa' | ma'] => hc_attn_scale [ra' | 1 | ma']",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next", "pools in other coordinates", "ik", "compress_gate ik => compress_gate rows", part=GLM5_TEXT
    ),
    mutant(
        "glm5_next",
        "factors where neurons are cut off",
        "du",
        "du as scale: Sign => du as scale: Scale",
        "size du = 1\n => ",
        part=GLM5_TEXT,
    ),
    mutant(
        "glm5_next",
        "factors where the tower's neurons are cut off",
        "vision_u",
        "u as scale: Sign[v, ff] => u as scale: Scale[v, ff]",
        "size u = 1\n => ",
        part="glm5_next_vision",
    ),
]
