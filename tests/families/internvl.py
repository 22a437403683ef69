"""Other models that see: InternVL, Ovis and single ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, in_codes, in_pixels, seen_as_patches, seen_inputs
from toy_models import composed
from toy_settings import (
    COMPOSED_MODELS,
    IMAGE,
    IMAGE_TOKENS,
    KNOWN,
    KNOWN_TEXT,
    LLAMA,
    QWEN2,
    TEXT,
    TOWER,
    TWO,
    WINDOWED,
    Inputs,
)


def _internvl(**changes: Any) -> Any:
    vision = {**TOWER, "image_size": [8, 8], "patch_size": [2, 2], "attention_bias": True, **changes}
    config = tf.InternVLConfig(
        text_config={**TEXT, "model_type": "qwen2"}, vision_config=vision, image_token_id=IMAGE, image_seq_length=4, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.InternVLForConditionalGeneration(config)


SQUARE = {**TOWER, "image_size": [8, 8], "patch_size": [2, 2]}
CODES: dict[str, Any] = {
    "embed_dim": 4, "num_embeddings": 11, "latent_channels": 4, "resolution": 8, "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1,
}  # fmt: skip
CHAMELEON: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "vq_config": CODES,
    "vocabulary_map": {"<image>": IMAGE, **{f"IMGIMG{a}Z": 40 + n for n, a in enumerate([*"ABCDEFGHIJ", "BA"])}},
}  # fmt: skip


def _chameleon(**changes: Any) -> Any:
    return tf.ChameleonForConditionalGeneration(tf.ChameleonConfig(**CHAMELEON, **changes))


OVIS_EYE: dict[str, Any] = {
    **TOWER,
    "vocab_size": 33,
    "num_visual_indicator_tokens": 4,
    "hidden_stride": 2,
    "qkv_bias": True,
}


def _ovis2(**changes: Any) -> Any:
    text = {**TWO, "model_type": "qwen2"}
    config = tf.Ovis2Config(
        text_config=text, vision_config={**OVIS_EYE, **changes}, image_token_id=IMAGE, visual_indicator_token_ids=[63, 64, 65, 66],
        hidden_size=48, vocab_size=67, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Ovis2ForConditionalGeneration(config)


def _tokenised(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, between the tokens that frame it."""
    side = config.vision_config.image_size // config.vision_config.patch_size // config.vision_config.hidden_stride
    ids = torch.randint(4, 60, (3, 24), generator=rng)
    ids[:, 1], ids[:, 2 : 2 + side**2], ids[:, 2 + side**2] = 63, IMAGE, 64
    return {"input_ids": ids, "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)}


def _in_rows(_: Any, rng: torch.Generator) -> Inputs:
    """Images as rows of patches."""
    return {"input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 4, 12)}


def _in_merged_grids(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches of one moment, four to be merged."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 48, 12), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "image_merge_sizes": torch.tensor([2, 2, 2]),
    }  # fmt: skip


QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3"}
PIXTRAL: dict[str, Any] = {**TOWER, "model_type": "pixtral", "head_dim": 12, "hidden_act": "silu"}
PERSIMMON: dict[str, Any] = {
    **KNOWN, "model_type": "persimmon", "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
LIGHTON_OCR: dict[str, Any] = {"text_config": QWEN3, "vision_config": PIXTRAL, "image_token_id": IMAGE, "tie_word_embeddings": False}  # fmt: skip
FUYU: dict[str, Any] = {"text_config": PERSIMMON, "patch_size": 2, "num_channels": 3, "image_token_id": IMAGE, "tie_word_embeddings": False}  # fmt: skip
VIDEO_LLAMA_3: dict[str, Any] = {"text_config": QWEN2, "vision_config": TOWER, "image_token_id": IMAGE, "video_token_id": 64}  # fmt: skip
HYPERCLOVAX_VISION_V2: dict[str, Any] = {"text_config": {**KNOWN_TEXT, "model_type": "hyperclovax"}, "vision_config": {**WINDOWED, "out_hidden_size": 20, "model_type": "qwen2_5_vl_vision"}, **IMAGE_TOKENS}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "internvl": (_internvl, 1e-5),
    "internvl-normed": (lambda: _internvl(use_qk_norm=True, norm_type="rms_norm"), 1e-5),
    "lighton_ocr": (partial(composed, "LightOnOcr", LIGHTON_OCR), 1e-5),
    "fuyu": (partial(composed, "Fuyu", FUYU, "ForCausalLM"), 1e-5),
    "video_llama_3": (partial(composed, "VideoLlama3", VIDEO_LLAMA_3), 1e-5),
    "ovis2": (_ovis2, 1e-5),
    "ovis2-plain": (lambda: _ovis2(qkv_bias=False, hidden_stride=1), 1e-5),
    "chameleon": (lambda: _chameleon(attention_bias=True, mlp_bias=True), 1e-5),
    "chameleon-swin": (lambda: _chameleon(swin_norm=True), 1e-5),
    "hyperclovax_vision_v2": (partial(composed, "HyperCLOVAXVisionV2", HYPERCLOVAX_VISION_V2), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "InternVLVision": (SQUARE, ["Model"]),
    "InternVL": ({"text_config": {**TEXT, "model_type": "qwen3"}, "vision_config": SQUARE}, COMPOSED_MODELS),
    "LightOnOcr": (LIGHTON_OCR, COMPOSED_MODELS),
    "Fuyu": (FUYU, ["Model", "ForCausalLM"]),
    "VideoLlama3": (VIDEO_LLAMA_3, COMPOSED_MODELS),
    "VideoLlama3Vision": (TOWER, ["Model"]),
    "Ovis2Vision": (OVIS_EYE, []),
    "Ovis2": (
        {
            "text_config": {**TWO, "model_type": "qwen2"},
            "vision_config": OVIS_EYE,
            "hidden_size": 48,
            "vocab_size": 67,
        },
        COMPOSED_MODELS,
    ),
    "Chameleon": (CHAMELEON, ["Model", "ForConditionalGeneration"]),
    "HyperCLOVAXVisionV2": (HYPERCLOVAX_VISION_V2, COMPOSED_MODELS),
}

STREAMS: dict[str, Streams] = {
    **{key: {"res": "O", "vision_res": "Perm"} for key in ["internvl", "internvl-normed"]},
    "lighton_ocr": {"res": "O", "vision_res": "SignedPerm", "merged": "O"},
    "fuyu": {"res": "OFixingOnes"},
    "video_llama_3": {"res": "O", "vision_res": "OFixingOnes"},
    **{key: {"res": "O", "vision_res": "SignedPerm"} for key in ["ovis2", "ovis2-plain"]},
    "chameleon": {"res": "O"},
    "chameleon-swin": {"res": "SignedPerm"},
    "hyperclovax_vision_v2": {"res": "SignedPerm", "vision_res": "O"},
}

IDLE = {
    ("chameleon-swin", "vb"),
    ("hyperclovax_vision_v2", "vb"),
    ("internvl", "vb"),
    ("internvl-normed", "vb"),
    ("lighton_ocr", "vb"),
    ("ovis2", "vb"),
    ("ovis2-plain", "vb"),
    ("video_llama_3", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "chameleon": in_codes,
    "ovis2": _tokenised,
    "hyperclovax_vision_v2": lambda config, rng: {
        k: v for k, v in seen_as_patches(24)(config, rng).items() if k != "mm_token_type_ids"
    },
    "lighton_ocr": in_pixels(4, image_sizes=torch.tensor([[8, 8]] * 3)),
    "fuyu": _in_rows,
    "video_llama_3": _in_merged_grids,
    "internvl": seen_inputs,
}

MUTANTS = [
    mutant("internvl", "patches fast in the projector", "vision_res", "(merge vision_res)' => (vision_res merge)'"),
    mutant("internvl", "hidden bias forgotten", "project", "linear_1.bias (project pu) => linear_1.bias rows"),
    mutant(
        "internvl",
        "layer scale not divided",
        "vision_s1",
        "lambda_1 diag(res s1') => lambda_1 res",
        part="internvl_vision",
    ),
    mutant(
        "internvl-normed",
        "any matrix under norms",
        "vision_qk",
        "GL[l, h] if not normed => GL[l, h]",
        "space qk: Perm[l, h] if normed => ",
        "space sg as qk: Sign[l, h, qk] if normed => ",
        "space t as qk: Scale[l, h, qk] if normed => ",
        "(h qk t) => rows",
        "(h qk' t') => rows",
        part="internvl_vision",
    ),
    mutant("internvl-normed", "gains not dual", "vision_t", "(h qk' t') => (h qk' t)", part="internvl_vision"),
    mutant(
        "ovis2",
        "the table of what is seen in other coordinates",
        "res",
        "visual_embeddings_table.weight piece res => visual_embeddings_table.weight piece other",
    ),
    mutant(
        "ovis2",
        "the neighbours' coordinates fast",
        "vision_res",
        "(merge vision_res vision_nf)' => (vision_res vision_nf merge)'",
    ),
    mutant(
        "ovis2-plain", "the head past the gain", "vision_nf", "(merge vision_res vision_nf)' => (merge vision_res)'"
    ),
    mutant("lighton_ocr", "neighbours slow", "vision_res", "(vision_res np merge)' => (merge vision_res np)'"),
    mutant("lighton_ocr", "turned before the projector alone", "merged", "project merged' => project columns"),
    mutant(
        "fuyu",
        "patches in other coordinates",
        "res",
        "vision_embed_tokens.weight res pixels => vision_embed_tokens.weight other pixels",
    ),
    mutant(
        "fuyu",
        "the patches' bias in other coordinates",
        "res",
        "vision_embed_tokens.bias res => vision_embed_tokens.bias other",
    ),
    mutant("video_llama_3", "past the tower's last gain", "vision_nf", "(vision_res vision_nf)' => vision_res'"),
    mutant("video_llama_3", "neurons not permuted on one side", "project", "res project' => res columns"),
    mutant(
        "video_llama_3",
        "interleaved pairs",
        "vision_c",
        "(h c pair) => (h pair c)",
        "(h c' pair) => (h pair c')",
        part="video_llama_3_vision",
    ),
    mutant(
        "chameleon",
        "biases of norms not scaled",
        "t",
        "q_norm.bias (kv g) (c pair t) => q_norm.bias (kv g) (c pair)",
    ),
    mutant(
        "chameleon",
        "norms' gains of other heads",
        "kv",
        "k_norm.weight kv (c pair t') => k_norm.weight heads (c pair t')",
        "space t as qk: Scale[l, kv, pair] => space t as qk: Scale[l, pair]",
    ),
    mutant(
        "chameleon",
        "signs under a centring norm",
        "sg",
        "size c = 2\n => size c = 2\nsize sg = 1\n",
        "space t as => space sg as qk: Sign[l, kv, pair]\nspace t as",
        "weight (kv g c pair) (res n1)' => weight (kv g c pair sg) (res n1)'",
        "weight (kv c pair) (res n1)' => weight (kv c pair sg') (res n1)'",
    ),
    mutant(
        "chameleon-swin",
        "rotated behind the branches' norms",
        "res",
        "residual res: SignedPerm if swin_norm => residual res: O if swin_norm",
        "diag(res n1) => res",
        "diag(res n2) => res",
        "diag(res nf) => (res nf)",
    ),
    mutant(
        "chameleon-swin",
        "gains behind branches folded",
        "n1",
        "n1: Scale[l, res] if not swin_norm => n1: Scale[l, res]",
    ),
    mutant(
        "hyperclovax_vision_v2",
        "the second map reads other coordinates",
        "mid",
        "weight res mid' => weight res other",
    ),
    mutant(
        "hyperclovax_vision_v2",
        "the first bias in other coordinates",
        "mid",
        "merger.mlp.2.bias mid => merger.mlp.2.bias other",
    ),
    mutant(
        "hyperclovax_vision_v2",
        "the first bias not given back",
        "mb",
        " -> (projector|vision_projector).bias via (projector|vision_projector).weight => ",
    ),
]
