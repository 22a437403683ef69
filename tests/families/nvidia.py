"""NVIDIA's Nemotron, Cosmos, Parakeet, RADIO and Flamingos."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, seen_as_patches, seen_inputs
from toy_models import ahead, causal, composed
from toy_settings import (
    BOUNDED_IMAGE_TOKENS,
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    GRID,
    HEARD_TOKEN,
    IMAGE,
    KNOWN,
    KNOWN_CAUSAL,
    KNOWN_TEXT,
    LANGUAGE_MODELS,
    SECTIONS,
    SIGLIP2,
    TEXT,
    TWO,
    Inputs,
)

NEMOTRON_H: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k != "num_hidden_layers"}, "layers_block_type": ["mamba", "attention", "mlp", "moe"],
    "ssm_state_size": 10, "mamba_num_heads": 12, "mamba_head_dim": 8, "n_groups": 2, "conv_kernel": 3, "expand": 2, "chunk_size": 4,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 24,
}  # fmt: skip
FAST_PART = "parakeet_encoder"
FAST: dict[str, Any] = {
    "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 36, "conv_kernel_size": 3, "subsampling_conv_channels": 6,
    "num_mel_bins": 16,
}  # fmt: skip
TRANSDUCED: dict[str, Any] = {
    "encoder_config": FAST,
    "vocab_size": 31,
    "decoder_hidden_size": 16,
    "blank_token_id": 30,
    "pad_token_id": 2,
}
RADIO: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "mlp_ratio": 0.8, "patch_size": 2, "image_size": 8, "max_img_size": 8, "num_cls_tokens": 2,
    "num_registers": 1, "summary_idxs": [0, 1], "video_temporal_patch_size": 2,
}  # fmt: skip
THINKING: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS, "num_hidden_layers": 2}, "image_token_id": IMAGE, "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66,
    "vision_config": {
        **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    },
}  # fmt: skip
OMNI: dict[str, Any] = {
    "text_config": {**NEMOTRON_H, "model_type": "nemotron_h"}, "vision_config": {**RADIO, "model_type": "radio"}, "audio_config": {**FAST, "projection_hidden_size": 22, "projection_bias": True},
    "projector_hidden_size": 28, "vision_hidden_size": 60, "image_token_id": IMAGE, "video_token_id": 64, "audio_token_id": HEARD_TOKEN,
}  # fmt: skip


def _ctc() -> Any:
    return tf.ParakeetForCTC(tf.ParakeetCTCConfig(encoder_config=FAST, vocab_size=31, pad_token_id=30))


def _rnnt() -> Any:
    plain = {**FAST, "attention_bias": False, "convolution_bias": False, "hidden_act": "relu"}
    return tf.ParakeetForRNNT(
        tf.ParakeetRNNTConfig(**{**TRANSDUCED, "encoder_config": plain, "num_decoder_layers": 1})
    )


def _omni(ahead: int = 0, **changes: Any) -> Any:
    text, eye = {**OMNI["text_config"], "num_nextn_predict_layers": ahead}, {**OMNI["vision_config"], **changes}
    config = tf.NemotronH_Omni_Reasoning_V3_Config(**{**OMNI, "text_config": text, "vision_config": eye})
    return tf.NemotronH_Omni_Reasoning_V3(config)


def _spectra(config: Any, rng: torch.Generator) -> Inputs:
    """Spectrograms, of which one is short, and for transducers the words before."""
    mask = torch.ones((3, 40), dtype=torch.bool)
    mask[1, 24:] = False
    words = (
        {"decoder_input_ids": torch.randint(0, 30, (3, 4), generator=rng)}
        if hasattr(config, "decoder_hidden_size")
        else {}
    )
    return {"input_features": drawn_numbers(rng, 3, 40, 16), "attention_mask": mask, **words}


def _seen_and_heard(_: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image and a sound each."""
    ids = drawn_words(rng, 4)
    ids[:, 6:8] = HEARD_TOKEN
    return {
        "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, 12), "image_grid_hw": torch.tensor([[4, 4]] * 3),
        "input_features": drawn_numbers(rng, 3, 16, 16),
    }  # fmt: skip


def _nemotron_ahead() -> Any:
    first = {f"mtp.layers.0.{name}.weight": "backbone.norm_f.weight" for name in ("enorm", "hnorm", "norm")}
    beside = {
        **first,
        "mtp.layers.0.eh_proj.weight": "fused",
        "mtp.layers.1.final_layernorm.weight": "backbone.norm_f.weight",
    }
    beside |= {f"mtp.layers.0.mixer.{x}_proj.weight": f"backbone.layers.1.mixer.{x}_proj.weight" for x in "qkvo"}
    model = causal("NemotronH", NEMOTRON_H, moe_latent_size=22)
    return ahead(model, "backbone.layers.3.", "mtp.layers.1.", beside)


PLACED_TEXT: dict[str, Any] = {**KNOWN_TEXT, "rope_parameters": SECTIONS}
"""A text model whose positions have three parts: time, row and column."""
EDGE: dict[str, Any] = {k: v for k, v in SIGLIP2.items() if k not in ("vision_use_head", "model_type")}
COSMOS3_EDGE: dict[str, Any] = {"text_config": PLACED_TEXT, "vision_config": {**EDGE, "spatial_merge_size": 2}, "projector_hidden_size": 36, **BOUNDED_IMAGE_TOKENS}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "nemotron_h": (lambda: causal("NemotronH", NEMOTRON_H), 1e-5),
    "nemotron": (lambda: causal("Nemotron", KNOWN_CAUSAL, attention_bias=True, mlp_bias=True), 1e-9),
    "nemotron-heads": (
        lambda: causal("Nemotron", {**KNOWN_CAUSAL, "num_key_value_heads": 3, "head_dim": 20}),
        1e-9,
    ),
    "nemotron_h-ahead": (_nemotron_ahead, 1e-5),
    "nemotron_h-latent": (lambda: causal("NemotronH", NEMOTRON_H, moe_latent_size=22, mlp_bias=True), 1e-5),
    "parakeet_ctc": (_ctc, 1e-9),
    "parakeet_tdt": (lambda: tf.ParakeetForTDT(tf.ParakeetTDTConfig(**TRANSDUCED)), 1e-9),
    "parakeet_rnnt": (_rnnt, 1e-9),
    "cosmos3_omni": (lambda: tf.Cosmos3OmniForConditionalGeneration(tf.Cosmos3OmniConfig(**THINKING)), 1e-5),
    "nemotron_h_omni": (_omni, 1e-5),
    "nemotron_h_omni-gated": (lambda: _omni(1, use_swiglu_ffn=True), 1e-5),
    "cosmos3_edge": (partial(composed, "Cosmos3Edge", COSMOS3_EDGE), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "NemotronH": (NEMOTRON_H, LANGUAGE_MODELS),
    "Nemotron": (KNOWN_CAUSAL, CLASSIFYING_LANGUAGE_MODELS),
    "ParakeetEncoder": (FAST, []),
    "ParakeetCTC": ({"encoder_config": FAST, "vocab_size": 31, "pad_token_id": 30}, []),
    "ParakeetTDT": (TRANSDUCED, []),
    "ParakeetRNNT": (TRANSDUCED, []),
    "Radio": (RADIO, ["Model"]),
    "Cosmos3Omni": (THINKING, ["Model", "ForConditionalGeneration"]),
    "NemotronH_Omni_Reasoning_V3_": (OMNI, []),
    "Cosmos3Edge": (COSMOS3_EDGE, COMPOSED_MODELS),
    "Cosmos3EdgeText": (PLACED_TEXT, ["Model"]),
    "Cosmos3EdgeVision": (EDGE, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["nemotron_h", "nemotron_h-latent"], "O"),
    **dict.fromkeys(["nemotron", "nemotron-heads"], "OFixingOnes"),
    "nemotron_h-ahead": {},
    "cosmos3_omni": {"res": "O", "vres": "Perm"},
    "nemotron_h_omni": {"res": "O", "vision_res": "OFixingOnes", "sound_res": "Perm"},
    "nemotron_h_omni-gated": {"res": "O", "vision_res": "Perm", "sound_res": "Perm"},
    "cosmos3_edge": {"res": "O", "vision_res": "Perm"},
}

IDLE = {
    ("nemotron-heads", "kb"),
    ("nemotron-heads", "vb"),
    ("cosmos3_edge", "vb"),
    ("cosmos3_omni", "vb"),
    ("nemotron_h_omni", "sound_kb"),
    ("nemotron_h_omni", "sound_vb"),
    ("nemotron_h_omni-gated", "sound_kb"),
    ("nemotron_h_omni-gated", "sound_vb"),
    ("parakeet_rnnt", "kb"),
    ("parakeet_rnnt", "vb"),
}

INPUTS: dict[str, Drawn] = {
    **dict.fromkeys(["parakeet_ctc", "parakeet_tdt", "parakeet_rnnt"], _spectra),
    "nemotron_h_omni": _seen_and_heard,
    "cosmos3_edge": seen_as_patches(12),
    "cosmos3_omni": seen_inputs,
}

CONVERTED = {"nemotron_h-ahead", "nemotron_h-latent", "nemotron_h_omni", "nemotron_h_omni-gated", "nemotron_h"}

MUTANTS = [
    mutant(
        "nemotron_h",
        "experts leave their group",
        "e",
        "space eg as expert: Perm[l] if eg > 1 => ",
        "Perm[l, eg] if eg > 1 => Perm[l] if eg > 1",
        "size eg = n_group or 1 => size eg = 1",
        "eg > 1 => eg > 2",
        "eg == 1 => eg < 2",
    ),
    mutant(
        "nemotron_h", "the state space past the gain", "n1", "mg ms cs | mg mh] (res n1)' => mg ms cs | mg mh] res'"
    ),
    mutant(
        "nemotron_h",
        "a convolution of other states",
        "ms",
        "[mg mh mp xs' | mg ms bs' | mg ms cs'] 1 width => [mg mh mp xs' | mg ms bs' | mg other cs'] 1 width",
        "size vocab => size other = ms\nsize vocab",
    ),
    mutant(
        "nemotron_h",
        "a factor through a square",
        "du",
        "space du as scale: SquaredScale[l, dff] => space du as scale: PositiveScale[l, dff]",
    ),
    mutant("nemotron", "gains stored as they act", "n1", "diag(res n1) - 1 => diag(res n1)"),
    mutant("nemotron", "a factor through a square", "u", "SquaredScale[l, ff] => PositiveScale[l, ff]"),
    mutant("nemotron", "a square that is not undone", "u", "res (ff u') => res ff"),
    mutant("nemotron_h-latent", "the latent's reader not dual", "lat", "(ff u) lat' if lat => (ff u) lat if lat"),
    mutant(
        "nemotron_h-latent",
        "experts' output not in the latent",
        "out",
        "down_proj.weight out (ff u') if lat => down_proj.weight other (ff u') if lat",
        "size out = lat => size out = lat\nsize other = lat",
    ),
    mutant(
        "nemotron_h-latent",
        "the latent's bias forgotten",
        "lat",
        "fc1_latent_proj.bias lat if => fc1_latent_proj.bias other if",
        "size out = lat => size out = lat\nsize other = lat",
    ),
    mutant(
        "parakeet_ctc",
        "the last gain past what reads it",
        "nf",
        "ctc_head.weight vocab (res nf)' 1 => ctc_head.weight vocab res' 1",
    ),
    mutant(
        "parakeet_tdt",
        "cells of one gate alone",
        "top",
        "bias_hh_l1 [top | top | top | top] => bias_hh_l1 [top | top | top | gate]",
        "size joint => size gate = emb\nsize joint",
    ),
    mutant(
        "parakeet_tdt",
        "words that the gates read in other coordinates",
        "emb",
        "[cell | cell | cell | cell] emb' if deep => [cell | cell | cell | cell] other if deep",
    ),
    mutant(
        "parakeet_rnnt",
        "negative factors through ReLU",
        "ju",
        "PositiveScale[joint] => Scale[joint]",
        "returns joint ju res => returns res",
    ),
    mutant(
        "parakeet_ctc", "values for gates", "cu", "[channel cu | channel] => [channel | channel cu]", part=FAST_PART
    ),
    mutant(
        "parakeet_ctc",
        "statistics past the factor",
        "cs",
        "running_mean (channel cs) => running_mean channel",
        part=FAST_PART,
    ),
    mutant(
        "parakeet_ctc",
        "factors past the convolution's gain where its neurons are no ReLU",
        "ca",
        'ca as scale: PositiveScale[l, channel] if hidden_act == "relu" => ca as scale: PositiveScale[l, channel]',
        part=FAST_PART,
    ),
    mutant(
        "parakeet_ctc",
        "negative factors in front of ReLU",
        "u1",
        "u1 as scale: PositiveScale[c1] => u1 as scale: Scale[c1]",
        part=FAST_PART,
    ),
    mutant("parakeet_ctc", "frequencies slow", "c2", "(c2' u2' frequency) => (frequency c2' u2')", part=FAST_PART),
    mutant(
        "parakeet_ctc",
        "values of other heads",
        "h",
        "v_proj.weight (h ov) => v_proj.weight rows",
        "v_proj.bias (h ov) => v_proj.bias rows",
        "space ov: GL[l, h]\n => ",
        "res (h ov') => res (h back)",
        "size ov = => size back = head_dim or res // h\nsize ov =",
        "shift vb: => # shift vb:",
        part=FAST_PART,
    ),
    mutant(
        "cosmos3_omni",
        "the tower past the deep projectors",
        "vres",
        "merger_list).{d}.(linear_fc1|mlp.0).weight deep (merge vres)' => merger_list).{d}.(linear_fc1|mlp.0).weight deep other",
    ),
    mutant(
        "cosmos3_omni",
        "keys without their signs",
        "sg",
        "(k_proj|to_k).weight (kv c pair sg') => (k_proj|to_k).weight (kv c pair)",
        part="qwen3_vl_text",
    ),
    mutant(
        "nemotron_h_omni",
        "queries fast in what is fused",
        "vision_qk",
        "qkv.weight [h qk | h qk' | h ov] => qkv.weight (h [qk | qk' | ov])",
        "qkv.bias [h qk | h qk' | h ov] => qkv.bias (h [qk | qk' | ov])",
        part="radio",
    ),
    mutant(
        "nemotron_h_omni",
        "films in other coordinates",
        "vision_res",
        "cls_token.token tokens res => cls_token.token tokens other",
        part="radio",
    ),
    mutant(
        "nemotron_h_omni",
        "the layer scale on the other side",
        "vision_s1",
        "lambda1 diag(res s1') => lambda1 diag(res s1)",
        part="radio",
    ),
    mutant("nemotron_h_omni", "neighbours fast", "vision_res", "(merge vision_res np)' => (vision_res merge np)'"),
    mutant(
        "nemotron_h_omni",
        "factors where neurons are squared",
        "pu",
        "space pu as scale: SquaredScale[project] => space pu as scale: PositiveScale[project]",
    ),
    mutant(
        "nemotron_h_omni",
        "what is heard in other coordinates",
        "res",
        "sound_projection.linear2.bias res => sound_projection.linear2.bias other",
    ),
    mutant(
        "cosmos3_edge",
        "patches fast in the projector",
        "vision_res",
        "project (merge vision_res np)' => project (vision_res np merge)'",
    ),
    mutant(
        "cosmos3_edge",
        "past the gain of the projector's norm",
        "np",
        "project (merge vision_res np)' => project (merge vision_res)'",
    ),
    mutant(
        "cosmos3_edge",
        "factors where neurons are squared",
        "u",
        ' if hidden_act == "relu" => ',
        part="cosmos3_edge_text",
    ),
    mutant(
        "cosmos3_edge",
        "key not dual",
        "vision_qk",
        "(k_proj|to_k).weight (h qk') => (k_proj|to_k).weight (h qk)",
        part="cosmos3_edge_vision",
    ),
    mutant(
        "cosmos3_edge",
        "queries in groups of others",
        "kv",
        "(kv g c pair) => (g kv c pair)",
        part="cosmos3_edge_text",
    ),
    mutant(
        "cosmos3_edge",
        "negative factors allowed by GELU",
        "vision_u",
        ' if hidden_act == "relu" => ',
        part="cosmos3_edge_vision",
    ),
]
