"""MiniMax and MiniCPM."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, in_cubes
from toy_models import causal
from toy_settings import (
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    IMAGE,
    KNOWN,
    LANGUAGE_MODELS,
    LATENT,
    NEXT,
    SECTIONS_OF_A_PART,
    TEXT,
    TOWER,
    TWO,
    Inputs,
)

MINIMAX_TEXT = "minimax_m3_vl_text"
MINICPM: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "qwen3"}, "vision_config": {**TOWER, "image_size": 16, "num_hidden_layers": 3}, "insert_layer_id": 1,
    "image_token_id": IMAGE, "video_token_id": 64, "tie_word_embeddings": False,
}  # fmt: skip
CANVAS: dict[str, Any] = {
    **MINICPM, "text_config": {**NEXT, "model_type": "qwen3_5_text", "rope_parameters": SECTIONS_OF_A_PART},
    "image_start_id": 65, "image_end_id": 66, "slice_start_id": 63, "slice_end_id": 62, "newline_id": 61,
}  # fmt: skip


def _packed(config: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, all in one row."""
    ids = drawn_words(rng, 16 if config.downsample_mode == "4x" else 4)
    marked = {}
    if config.model_type == "minicpmv4_7":
        ids[:, 0], ids[:, 5] = config.image_start_id, config.image_end_id
        marked = {"mm_token_type_ids": (ids == IMAGE).int()}
    return {
        **marked,
        "input_ids": ids,
        "pixel_values": drawn_numbers(rng, 1, 3, 2, 2 * 3 * 64),
        "target_sizes": torch.tensor([[8, 8]] * 3),
    }


MINIMAX: dict[str, Any] = {
    **TWO, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["linear_attention", "full_attention"], "block_size": 4,
    "full_attn_alpha_factor": 0.7, "linear_attn_beta_factor": 1.3, "mlp_alpha_factor": 1.2,
}  # fmt: skip
MINIMAX_M3: dict[str, Any] = {
    **TEXT, **KNOWN, "num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.6}, "intermediate_size": 10, "shared_intermediate_size": 14, "dense_intermediate_size": 20,
    "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 0.5, "mlp_layer_types": ["dense", "sparse"],
    "layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 3, "index_head_dim": 9, "index_block_size": 2, "index_topk_blocks": 2,
}  # fmt: skip
MINIMAX_M3_WHOLE: dict[str, Any] = {
    "text_config": MINIMAX_M3, "vision_config": {**TOWER, "hidden_size": 64, "num_attention_heads": 4}, "projector_hidden_size": 36, "image_token_index": IMAGE, "video_token_index": 64,
}  # fmt: skip


def _minimax(**changes: Any) -> Any:
    config = tf.MiniMaxM3VLConfig(**{**MINIMAX_M3_WHOLE, "text_config": {**MINIMAX_M3, **changes}})
    return tf.MiniMaxM3SparseForConditionalGeneration(config)


MORE_TOYS: dict[str, Toy] = {
    "minimax_m2": (
        lambda: causal("MiniMaxM2", TWO, num_local_experts=4, num_experts_per_tok=2, rotary_dim=4),
        1e-5,
    ),
    "minicpm3": (lambda: causal("MiniCPM3", LATENT, attention_bias=True), 1e-5),
    "minimax": (lambda: causal("MiniMax", MINIMAX), 1e-5),
    "minicpmv4_6": (lambda: tf.MiniCPMV4_6ForConditionalGeneration(tf.MiniCPMV4_6Config(**MINICPM)), 1e-5),
    "minicpmv4_7": (lambda: tf.MiniCPMV4_7ForConditionalGeneration(tf.MiniCPMV4_7Config(**CANVAS)), 1e-5),
    "minicpm_ocr": (
        lambda: tf.MiniCPMOcrForConditionalGeneration(tf.MiniCPMOcrConfig(**{**MINICPM, "image_size": None})),
        1e-5,
    ),
    "minimax_m3_vl": (_minimax, 1e-5),
    "minimax_m3_vl-one": (lambda: _minimax(index_n_heads=1), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "MiniMaxM2": ({**TWO, "num_local_experts": 4}, LANGUAGE_MODELS),
    "MiniCPM3": (LATENT, CLASSIFYING_LANGUAGE_MODELS),
    "MiniMax": (MINIMAX, LANGUAGE_MODELS),
    "MiniCPMV4_6": (MINICPM, COMPOSED_MODELS),
    "MiniCPMV4_7": (CANVAS, COMPOSED_MODELS),
    "MiniCPMOcr": ({**MINICPM, "image_size": None}, COMPOSED_MODELS),
    "MiniMaxM3VL": (MINIMAX_M3_WHOLE, ["Model"]),
    "MiniMaxM3VLText": (MINIMAX_M3, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["minimax_m2", "minicpm3"], "O"),
    "minimax": "SignedPerm",
    **{key: {"res": "O", "vres": "Perm"} for key in ["minicpmv4_6", "minicpmv4_7", "minicpm_ocr"]},
    **{key: {"res": "O", "vres": "Perm", "mid": "O"} for key in ["minimax_m3_vl", "minimax_m3_vl-one"]},
}

IDLE = {
    ("minicpm_ocr", "vb"),
    ("minicpmv4_6", "vb"),
}

INPUTS: dict[str, Drawn] = {
    **dict.fromkeys(["minicpmv4_6", "minicpmv4_7", "minicpm_ocr"], _packed),
    "minimax_m3_vl": in_cubes,
}

CONVERTED = {"minimax_m2", "minimax", "minimax_m3_vl", "minimax_m3_vl-one"}

MUTANTS = [
    mutant("minicpm3", "interleaved pairs", "c", "size halves = 1\n => size halves = 0\n"),
    mutant("minicpm3", "scale on gate and up", "du", "mlp.gate_proj.weight dff => mlp.gate_proj.weight (dff du)"),
    mutant(
        "minimax_m2",
        "heads without their gains",
        "kv",
        "(kv g [c pair t | rest rt]) => rows",
        "(kv [c pair t' | rest rt']) => rows",
        "space t as qk: Scale[l, kv, pair] => ",
        "space rt as qk: Scale[l, kv, rest] if rest > 0 => ",
    ),
    mutant(
        "minimax_m2",
        "the router's bias forgotten",
        "e",
        "e_score_correction_bias e => e_score_correction_bias rows",
    ),
    mutant(
        "minimax_m2",
        "all of a head turned",
        "t",
        "size pair = (head * (rope_parameters.partial_rotary_factor or partial_rotary_factor) if rope_parameters.partial_rotary_factor or partial_rotary_factor else rotary_dim or head) // 2 => size pair = head // 2",
    ),
    mutant(
        "minimax",
        "rotated behind gains that stay",
        "n1",
        "residual nf: => residual n1: Scale[l, res]\nresidual nf:",
        "input_layernorm.weight diag(res) => input_layernorm.weight diag(res n1)",
        "_proj.weight (lh [lqk | lqk | lov]) res' => _proj.weight (lh [lqk | lqk | lov]) (res n1)'",
        "output_gate.weight (lh lov) res' => output_gate.weight (lh lov) (res n1)'",
        "q_proj.weight (kv g c pair) res' => q_proj.weight (kv g c pair) (res n1)'",
        "k_proj.weight (kv c' pair) res' => k_proj.weight (kv c' pair) (res n1)'",
        "v_proj.weight (kv ov) res' => v_proj.weight (kv ov) (res n1)'",
    ),
    mutant(
        "minimax",
        "heads that decay at the rate of their place",
        "lh",
        "space lqk as qk => space lh as h: Perm[l]\nspace lqk as qk",
    ),
    mutant("minimax", "values without their gate", "lov", "output_gate.weight (lh lov) => output_gate.weight rows"),
    mutant("minimax", "any matrix through an activation", "lqk", "space lqk as qk: Perm => space lqk as qk: O"),
    mutant("minicpmv4_6", "patches of a window fast", "vres", "wff (window vres)' => wff (vres window)'"),
    mutant(
        "minicpmv4_6",
        "the norm over a window forgotten",
        "vres",
        "vit_merger.pre_norm.weight (window vres) => vit_merger.pre_norm.weight gains",
    ),
    mutant("minicpmv4_6", "neurons of a window not permuted back", "wff", "vres wff' => vres other"),
    mutant(
        "minicpmv4_6",
        "the window's heads and the tower's",
        "wh",
        "vit_merger.self_attn.v_proj.bias (wh wov) => vit_merger.self_attn.v_proj.bias rows",
    ),
    mutant("minicpmv4_7", "the merger past its neurons", "project", "res project' => res other"),
    mutant(
        "minicpm_ocr",
        "all of the tower turned",
        "vres",
        "residual vres: Perm => residual vres: OFixingOnes",
        "diag(vres) => vres",
        "diag(vres vn1) => (vres vn1)",
        "diag(vres vn2) => (vres vn2)",
        "diag(vres wn) => (vres wn)",
    ),
    mutant(
        "minimax_m3_vl",
        "groups without their choice",
        "kv",
        "(kv [ic ipair isg | irest irs]) (res n1)' if ih == kv => (ih [ic ipair isg | irest irs]) (res n1)' if ih == kv",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "factors beside what has one added",
        "u",
        "space ff: Perm[l, e] if routed => space ff: Perm[l, e] if routed\nspace u as scale: Scale[l, e, ff]",
        "w3.weight ff => w3.weight (ff u)",
        "w2.weight res ff' => w2.weight res (ff u')",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "a factor in gains of 1 + w",
        "t",
        "size sg = 1 => size sg = 1\nsize t = 1",
        "space ov: => space t as qk: Scale[l, pair]\nspace ov:",
        "self_attn.q_norm.weight [c pair | rest] => self_attn.q_norm.weight [c pair t | rest]",
        "self_attn.k_norm.weight [c pair | rest] => self_attn.k_norm.weight [c pair t' | rest]",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "all of a head turned",
        "sg",
        "* (rope_parameters.partial_rotary_factor or partial_rotary_factor or 1) => * 1",
        "rs as qk: Sign[l, kv, rest] if rest > 0 => rs as qk: Sign[l, kv, rest] if rest > 0 and ih == 0",
        "index_n_heads or => 3 or",
        "ihead - 2 * ipair => ihead - 2 * 3",
        "size ipair = pair => size ipair = 3",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "signs of the choice's queries alone",
        "isg",
        "indexer.k_proj).weight [ic ipair isg | => indexer.k_proj).weight [ic ipair |",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "the choice's coordinates past their gain",
        "irest",
        "(index_k_norm|indexer.k_norm).weight [ic ipair | irest] => (index_k_norm|indexer.k_norm).weight gains",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "the router's bias forgotten",
        "e",
        "e_score_correction_bias e => e_score_correction_bias rows",
        part=MINIMAX_TEXT,
    ),
    mutant(
        "minimax_m3_vl",
        "patches in halves of all their coordinates",
        "vc",
        "size vpair = 3 * ((sixth - sixth % 2) // 2) => size vpair = vhead // 2",
    ),
    mutant(
        "minimax_m3_vl",
        "rotated behind the norm of patches",
        "vres",
        "residual vres: Perm => residual vres: OFixingOnes",
        "diag(vres) => vres",
        "diag(vres vn1) => (vres vn1)",
        "diag(vres vn2) => (vres vn2)",
    ),
    mutant("minimax_m3_vl", "neighbours fast", "mid", "(merge mid)' => (mid merge)'"),
]
