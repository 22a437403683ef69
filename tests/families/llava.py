"""A known tower before a known language model: LLaVA, Idefics and kin."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, in_pixels, placed
from toy_models import composed, composite, made
from toy_settings import (
    AYA,
    CAUSAL_OF_THREE,
    COMPOSED_MODELS,
    IMAGE,
    KNOWN,
    LLAMA,
    NARROW_TOWER,
    SAID,
    SIGLIP,
    TEXT,
    TIED,
    TOWER,
    TOWER_OF_PATCHES,
    TOWERS,
    Inputs,
)

UNTIED_TEXT = {**TIED, "tie_word_embeddings": False}


def _llava(text: Any) -> Any:
    return composite("Llava", text, tf.CLIPVisionConfig(**TOWER_OF_PATCHES), projector_hidden_act="relu")


def _vipllava() -> Any:
    tower = tf.CLIPVisionConfig(**TOWER_OF_PATCHES)
    return composite(
        "VipLlava",
        tf.LlamaConfig(**UNTIED_TEXT),
        tower,
        vision_feature_layer=[-2, -1, 1],
        projector_hidden_act="relu",
    )


SMOL = {
    "text_config": {**SAID, "model_type": "llama"}, "vision_config": NARROW_TOWER, "scale_factor": 2, "image_token_id": IMAGE,
    "tie_word_embeddings": False,
}  # fmt: skip
ONE = {
    "text_config": {**SAID, "model_type": "qwen2"}, "vision_config": {**AYA["vision_config"], "patch_size": 4}, "image_token_id": IMAGE,
    "image_grid_pinpoints": [[8, 8]], "vision_feature_select_strategy": "full", "tie_word_embeddings": False,
}  # fmt: skip
CLIP_TOWER = {**TOWERS["vision_config"], "model_type": "clip_vision_model"}
FILMS: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "llama"},
    "vision_config": {**TOWER, "model_type": "clip_vision_model", "patch_size": 4, "projection_dim": 20},
    "image_token_index": IMAGE, "video_token_index": 64, "image_seq_length": 4, "video_seq_length": 10,
}  # fmt: skip


def _images_and_films(_: Any, rng: torch.Generator) -> Inputs:
    """Images, and films of two."""
    ids = torch.randint(4, 60, (3, 20), generator=rng)
    ids[:, 1:5], ids[:, 6:16] = IMAGE, 64
    return {
        "input_ids": ids,
        "pixel_values": drawn_numbers(rng, 3, 3, 8, 8),
        "pixel_values_videos": drawn_numbers(rng, 3, 2, 3, 8, 8),
    }


MODERN: dict[str, Any] = {
    "model_type": "modernbert", "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 40,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 3,
    "attention_bias": True, "mlp_bias": True, "norm_bias": True, "decoder_bias": True, "classifier_bias": True, "local_attention": 6,
}  # fmt: skip
MODERNVBERT: dict[str, Any] = {
    "model_type": "modernvbert", "text_config": MODERN, "vision_config": SIGLIP, "pixel_shuffle_factor": 2, "image_token_id": IMAGE,
}  # fmt: skip
PERCEIVER: dict[str, Any] = {
    "hidden_size": 48, "resampler_n_latents": 3, "resampler_depth": 2, "resampler_n_heads": 6, "resampler_head_dim": 10, "num_key_value_heads": 3,
}  # fmt: skip
COLMODERNVBERT: dict[str, Any] = {"vlm_config": MODERNVBERT, "embedding_dim": 20}  # fmt: skip
IDEFICS2: dict[str, Any] = {
            "text_config": {**LLAMA, "model_type": "mistral"}, "vision_config": TOWER, "perceiver_config": PERCEIVER, "image_token_id": IMAGE,
            "tie_word_embeddings": False,
        }  # fmt: skip

TOYS: dict[str, Toy] = {
    "llava": (lambda: _llava(tf.LlamaConfig(**UNTIED_TEXT)), 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "llava-qwen2": (lambda: _llava(tf.Qwen2Config(**UNTIED_TEXT)), 1e-5),
    "vipllava": (_vipllava, 1e-5),
    "idefics3": (made("Idefics3", "ForConditionalGeneration", **SMOL), 1e-5),
    "smolvlm": (made("SmolVLM", "ForConditionalGeneration", **SMOL), 1e-5),
    "llava_onevision": (made("LlavaOnevision", "ForConditionalGeneration", **ONE), 1e-5),
    "modernvbert": (partial(composed, "ModernVBert", MODERNVBERT, "ForMaskedLM"), 1e-5),
    "colmodernvbert": (partial(composed, "ColModernVBert", COLMODERNVBERT, "ForRetrieval"), 1e-5),
    "idefics2": (partial(composed, "Idefics2", IDEFICS2), 1e-5),
    "video_llava": (lambda: tf.VideoLlavaForConditionalGeneration(tf.VideoLlavaConfig(**FILMS)), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Llava": (
        {"text_config": {**CAUSAL_OF_THREE, "model_type": "llama"}, "vision_config": CLIP_TOWER},
        COMPOSED_MODELS,
    ),
    "VipLlava": (
        {"text_config": {**CAUSAL_OF_THREE, "model_type": "llama"}, "vision_config": CLIP_TOWER},
        COMPOSED_MODELS,
    ),
    "LlavaNext": (
        {"text_config": {**CAUSAL_OF_THREE, "model_type": "mistral"}, "vision_config": CLIP_TOWER},
        COMPOSED_MODELS,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "Idefics3": (SMOL, COMPOSED_MODELS),
    "SmolVLM": (SMOL, COMPOSED_MODELS),
    "LlavaOnevision": (ONE, COMPOSED_MODELS),
    "LlavaNextVideo": (
        {**ONE, "vision_config": {**NARROW_TOWER, "model_type": "clip_vision_model"}},
        COMPOSED_MODELS,
    ),
    "Idefics3Vision": (NARROW_TOWER, ["Transformer"]),
    "SmolVLMVision": (NARROW_TOWER, ["Transformer"]),
    "ModernVBert": (MODERNVBERT, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "ColModernVBert": (COLMODERNVBERT, ["ForRetrieval"]),
    "Idefics2": (IDEFICS2, COMPOSED_MODELS),
    "Idefics2Vision": (TOWER, []),
    "VideoLlava": (FILMS, ["Model", "ForConditionalGeneration"]),
}

STREAMS: dict[str, Streams] = {
    **{key: {"res": "O", "vision_res": "Perm"} for key in ["llava", "llava-qwen2", "vipllava", "llava_onevision"]},
    **{key: {"res": "O", "vision_res": "OFixingOnes"} for key in ["idefics3", "smolvlm"]},
    **{key: {"res": "Perm", "vision_res": "OFixingOnes"} for key in ["modernvbert", "colmodernvbert"]},
    "idefics2": {"res": "SignedPerm", "vision_res": "OFixingOnes"},
    "video_llava": {"res": "O"},
}

IDLE = {
    ("idefics2", "vb"),
    ("idefics3", "vb"),
    ("llava", "vb"),
    ("llava-qwen2", "vb"),
    ("llava_onevision", "vb"),
    ("smolvlm", "vb"),
    ("video_llava", "vb"),
    ("vipllava", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "video_llava": _images_and_films,
    **dict.fromkeys(["idefics3", "smolvlm"], placed(4, tiled=True)),
    "llava_onevision": placed(10, tiled=True, sized=True),
    **dict.fromkeys(["modernvbert", "colmodernvbert"], in_pixels(4, 1)),
    "idefics2": in_pixels(3, 1),
}

MUTANTS = [
    mutant(
        "llava", "patches read in other coordinates", "vision_res", "(project pu) vision_res' => (project pu) other"
    ),
    mutant(
        "llava",
        "patches written in other coordinates",
        "res",
        "linear_2.weight res (project pu') => linear_2.weight other (project pu')",
    ),
    mutant("llava", "negative scale under ReLU", "pu", "PositiveScale[project] => Scale[project]"),
    mutant("vipllava", "copies fast", "vision_res", "(copy vision_res np) => (vision_res copy np)"),
    mutant(
        "vipllava",
        "the norm's bias not scaled",
        "np",
        "projector_layernorm.bias (copy vision_res np) => projector_layernorm.bias (copy vision_res)",
    ),
    mutant(
        "vipllava",
        "patches written in other coordinates",
        "res",
        "linear_2.weight res (project pu') => linear_2.weight other (project pu')",
    ),
    mutant("llava-qwen2", "hidden bias forgotten", "project", "linear_1.bias (project pu) => linear_1.bias rows"),
    mutant(
        "idefics3",
        "patches fast in the map",
        "vision_res",
        "(merge vision_res vision_nf)' => (vision_res vision_nf merge)'",
    ),
    mutant(
        "smolvlm", "the map past the last gain", "vision_nf", "(merge vision_res vision_nf)' => (merge vision_res)'"
    ),
    mutant("smolvlm", "output not dual", "vision_ov", "(h ov') => (h ov)", part="smolvlm_vision"),
    mutant("idefics3", "key not dual", "vision_qk", "(h qk') => (h qk)", part="idefics3_vision"),
    mutant("llava_onevision", "new lines in other coordinates", "res", "image_newline res => image_newline other"),
    mutant(
        "llava_onevision",
        "the projector writes other coordinates",
        "res",
        "linear_2.weight res (project pu') => linear_2.weight other (project pu')",
    ),
    mutant(
        "modernvbert",
        "neighbours fast",
        "vision_res",
        "(shuffled vision_res vision_nf)' => (vision_res shuffled vision_nf)'",
    ),
    mutant(
        "modernvbert",
        "the head's norm in other coordinates",
        "res",
        "head).norm.weight res => head).norm.weight other",
    ),
    mutant("colmodernvbert", "pages in other coordinates", "res", "shared res' => shared other"),
    mutant("idefics2", "latents in other coordinates", "res", "latents res => latents other"),
    mutant(
        "idefics2",
        "the gain over what is seen forgotten",
        "pn1",
        "input_context_norm.weight diag(res pn1) => input_context_norm.weight diag(res)",
    ),
    mutant("idefics2", "output not dual", "vision_ov", "(h ov') => (h ov)", part="idefics2_vision"),
    mutant(
        "video_llava",
        "one tower's basis for both",
        "vision_res",
        "as vision at image_tower. without res nf => as vision at image_tower. without nf",
    ),
    mutant("video_llava", "neurons not permuted back", "project", "res (project pu') => res other"),
]
