"""Liquid's LFM: convolutions beside attention, and images."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, seen_inputs
from toy_models import causal, composed
from toy_settings import COMPOSED_MODELS, GRID, IMAGE, LANGUAGE_MODELS, SIGLIP2, TWO, Inputs

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
LFM3: dict[str, Any] = {
    **TWO, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 4, "conv_L_cache": 3,
    "conv_bias": True,
}  # fmt: skip
LFM3_EYE: dict[str, Any] = {
    **{k: v for k, v in GRID.items() if k not in ("depth", "num_heads")}, "hidden_size": 48, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "layer_types": ["conv", "full_attention"],
}  # fmt: skip


def _lfm3_vl() -> Any:
    config = tf.Lfm3VlConfig(
        text_config={**LFM3, "model_type": "lfm3"}, vision_config=LFM3_EYE, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=62, projector_hidden_size=36, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Lfm3VlForConditionalGeneration(config)


def _in_patches(_: Any, rng: torch.Generator) -> Inputs:
    """Images as lists of patches, of two shapes."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 16, 12), "spatial_shapes": torch.tensor([[4, 4], [2, 8], [8, 2]]),
        "pixel_attention_mask": torch.ones((3, 16), dtype=torch.long),
    }  # fmt: skip


LFM2_VL: dict[str, Any] = {"text_config": {**LFM2, "model_type": "lfm2"}, "vision_config": SIGLIP2, "projector_hidden_size": 36, "image_token_id": IMAGE}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "lfm2": (lambda: causal("Lfm2", LFM2), 1e-5),
    "lfm2_moe": (lambda: causal("Lfm2Moe", LFM2_MOE), 1e-5),
    "lfm2_vl": (partial(composed, "Lfm2Vl", LFM2_VL), 1e-5),
    "lfm2_vl-plain": (
        partial(composed, "Lfm2Vl", LFM2_VL, projector_use_layernorm=False, projector_hidden_act="relu"),
        1e-5,
    ),
    "lfm3": (lambda: tf.Lfm3ForCausalLM(tf.Lfm3Config(**LFM3)), 1e-5),
    "lfm3-plain": (
        lambda: tf.Lfm3ForCausalLM(tf.Lfm3Config(**LFM3, use_sandwich_norm=False, use_attention_gate=False)),
        1e-5,
    ),
    "lfm3_vl": (_lfm3_vl, 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Lfm2": (LFM2, LANGUAGE_MODELS),
    "Lfm2Moe": (LFM2_MOE, LANGUAGE_MODELS),
    "Lfm2Vl": (LFM2_VL, COMPOSED_MODELS),
    "Lfm3": (LFM3, LANGUAGE_MODELS),
    "Lfm3Vl": (
        {"text_config": {**LFM3, "model_type": "lfm3"}, "vision_config": LFM3_EYE},
        COMPOSED_MODELS,
    ),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["lfm2", "lfm2_moe"], "SignedPerm"),
    "lfm2_vl": {"res": "SignedPerm", "vision_res": "Perm"},
    "lfm2_vl-plain": {"res": "SignedPerm", "vision_res": "OFixingOnes"},
    **{key: {"res": "SignedPerm"} for key in ["lfm3", "lfm3-plain"]},
    "lfm3_vl": {"res": "SignedPerm", "vres": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    "lfm2_vl": _in_patches,
    "lfm3_vl": seen_inputs,
}

CONVERTED = {"lfm2_moe"}

MUTANTS = [
    mutant(
        "lfm2",
        "the convolution writes other coordinates",
        "res",
        "conv.out_proj.weight res (ch => conv.out_proj.weight other (ch",
    ),
    mutant("lfm2", "a gate past its convolution", "cb", "(ch cb' cc' cx' co') => (ch cc' cx' co')"),
    mutant(
        "lfm2",
        "channels of one gate alone",
        "ch",
        "[ch cb | ch cc | ch cx] => [ch cb | other cc | ch cx]",
        "size vocab => size other = ch\nsize vocab",
    ),
    mutant("lfm2", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant(
        "lfm2_moe",
        "the router's bias forgotten",
        "e",
        "feed_forward.expert_bias e => feed_forward.expert_bias rows",
    ),
    mutant("lfm3", "gates forgotten", "g", "(gate_proj|g_proj).weight (kv g) => (gate_proj|g_proj).weight rows"),
    mutant(
        "lfm3",
        "gains not dual",
        "t",
        "(k_layernorm|k_norm).weight (c pair t') => (k_layernorm|k_norm).weight (c pair t)",
    ),
    mutant(
        "lfm3",
        "a factor through the norm behind",
        "nf",
        "post_ffn_norm.weight diag(res) => post_ffn_norm.weight diag(res nf)",
    ),
    mutant(
        "lfm3_vl",
        "the neighbours' coordinates fast",
        "vres",
        "(project pu) (merge vres vnf)' => (project pu) (vres vnf merge)'",
    ),
    mutant(
        "lfm3_vl",
        "queries in groups of others",
        "vkv",
        "(vkv vg vc vpair vsg) => (vg vkv vc vpair vsg)",
        "vres (vkv vg vov') => vres (vg vkv vov')",
    ),
    mutant("lfm3_vl", "gains not dual", "vt", "(vc vpair vt') => (vc vpair vt)"),
    mutant("lfm2_vl", "neighbours fast", "vision_res", "(merge vision_res np)' => (vision_res merge np)'"),
    mutant(
        "lfm2_vl",
        "the tower's last gain folded past a norm",
        "vision_nf",
        "at vision_tower. without nf if => at vision_tower. if",
    ),
    mutant("lfm2_vl-plain", "negative scale under ReLU", "pu", "PositiveScale[project] => Scale[project]"),
]
