"""Constructors of tiny models that see, hear or read pages: towers, projectors and language models in other combinations (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as tf

from toy_encoders import QUERIED, SOUND
from toy_hybrids import LFM2
from toy_models import BART, LAYERS, TIED
from toy_seeing import GRID, IMAGE, SECTIONS, TEXT, TOWER

KNOWN: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA: dict[str, Any] = {**TEXT, **KNOWN, "model_type": "llama"}
QWEN2: dict[str, Any] = {**LLAMA, "model_type": "qwen2"}
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3"}
GEMMA: dict[str, Any] = {**TIED, **KNOWN, "model_type": "gemma"}
GEMMA3: dict[str, Any] = {
    **TIED, **KNOWN, "model_type": "gemma3_text", "layer_types": LAYERS, "sliding_window": 4, "query_pre_attn_scalar": 8,
}  # fmt: skip
SIGLIP: dict[str, Any] = {**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
SIGLIP2: dict[str, Any] = {
    **TOWER,
    "model_type": "siglip2_vision_model",
    "num_patches": 16,
    "vision_use_head": False,
}
PIXTRAL: dict[str, Any] = {**TOWER, "model_type": "pixtral", "head_dim": 12, "hidden_act": "silu"}
MODERN: dict[str, Any] = {
    "model_type": "modernbert", "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 40,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 3,
    "attention_bias": True, "mlp_bias": True, "norm_bias": True, "decoder_bias": True, "classifier_bias": True, "local_attention": 6,
}  # fmt: skip
PERSIMMON: dict[str, Any] = {
    **KNOWN, "model_type": "persimmon", "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
LISTENER: dict[str, Any] = {
    "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "max_source_positions": 8,
}  # fmt: skip
HEARD: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 240, "num_mel_bins": 7,
    "max_source_positions": 8, "head_dim": 12,
}  # fmt: skip
QWEN2_VL: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS},
    "vision_config": {**GRID, "embed_dim": 60, "hidden_size": 48, "mlp_ratio": 2},
    "image_token_id": IMAGE, "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66, "tie_word_embeddings": False,
}  # fmt: skip
PALIGEMMA: dict[str, Any] = {
    "model_type": "paligemma", "text_config": GEMMA, "vision_config": SIGLIP, "projection_dim": 48, "image_token_index": IMAGE,
}  # fmt: skip
MODERNVBERT: dict[str, Any] = {
    "model_type": "modernvbert", "text_config": MODERN, "vision_config": SIGLIP, "pixel_shuffle_factor": 2, "image_token_id": IMAGE,
}  # fmt: skip
LLAMA_TEXT: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "num_hidden_layers": 3, "cross_attention_layers": [1], "num_key_value_heads": 3,
}  # fmt: skip
TILES: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 3, "num_global_layers": 2, "attention_heads": 5, "intermediate_size": 44, "vision_output_dim": 180,
    "image_size": 8, "patch_size": 4, "max_num_tiles": 2, "intermediate_layers_indices": [0, 1],
    "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
}  # fmt: skip
GLM: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN,
    "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
}  # fmt: skip
GLM_MOE: dict[str, Any] = {
    **TEXT, **KNOWN, "rope_parameters": GLM["rope_parameters"], "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
GLM_EYES: dict[str, Any] = {
    **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "image_size": 8, "attention_bias": True,
}  # fmt: skip
PLACED: dict[str, Any] = {
    "image_token_id": IMAGE, "video_token_id": 64, "image_start_token_id": 61, "image_end_token_id": 62, "video_start_token_id": 65,
    "video_end_token_id": 66, "tie_word_embeddings": False,
}  # fmt: skip
PERCEIVER: dict[str, Any] = {
    "hidden_size": 48, "resampler_n_latents": 3, "resampler_depth": 2, "resampler_n_heads": 6, "resampler_head_dim": 10, "num_key_value_heads": 3,
}  # fmt: skip
CONFORMER: dict[str, Any] = {
    **SOUND, "conv_depthwise_kernel_size": 3, "feature_projection_input_dim": 10, "left_max_position_embeddings": 4, "right_max_position_embeddings": 3,
    "layerdrop": 0.0, "output_hidden_size": 48,
}  # fmt: skip
STAGES: dict[str, Any] = {
    "depths": [1, 2, 1, 1], "embed_dim": [12, 18, 24, 36], "num_heads": [3, 3, 4, 6], "num_groups": [2, 3, 4, 4], "patch_size": [3, 3, 3, 3],
    "patch_stride": [2, 2, 1, 1], "patch_padding": [1, 1, 1, 1], "window_size": 3, "projection_dim": 48, "max_temporal_embeddings": 3,
    "max_position_embeddings": 8, "mlp_ratio": 2.0, "drop_path_rate": 0.0,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "hidden_size": 60, "output_channels": 14, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 8, "patch_size": 2, "window_size": 3,
    "global_attn_indexes": [1], "mlp_dim": 44,
}  # fmt: skip
SENSE_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_audio": ("Qwen2Audio", {"text_config": QWEN2, "audio_config": {**LISTENER, "model_type": "qwen2_audio_encoder"}, "audio_token_id": IMAGE, "tie_word_embeddings": False}),
    "voxtral": ("Voxtral", {"text_config": LLAMA, "audio_config": HEARD, "audio_token_id": IMAGE, "tie_word_embeddings": False, "projector_hidden_act": "relu"}),
    "audioflamingo3": ("AudioFlamingo3", {"text_config": QWEN2, "audio_config": HEARD, "audio_token_id": IMAGE, "tie_word_embeddings": False}),
    "lfm2_vl": (
        "Lfm2Vl",
        {"text_config": {**LFM2, "model_type": "lfm2"}, "vision_config": SIGLIP2, "projector_hidden_size": 36, "image_token_id": IMAGE},
    ),
    "lighton_ocr": (
        "LightOnOcr", {"text_config": QWEN3, "vision_config": PIXTRAL, "image_token_id": IMAGE, "tie_word_embeddings": False},
    ),
    "deepseek_vl": ("DeepseekVL", {"text_config": LLAMA, "vision_config": SIGLIP, "image_token_id": IMAGE, "tie_word_embeddings": False}),
    "modernvbert": ("ModernVBert", MODERNVBERT),
    "colpali": ("ColPali", {"vlm_config": PALIGEMMA, "embedding_dim": 20}),
    "colqwen2": ("ColQwen2", {"vlm_config": QWEN2_VL, "embedding_dim": 20}),
    "colmodernvbert": ("ColModernVBert", {"vlm_config": MODERNVBERT, "embedding_dim": 20}),
    "fuyu": ("Fuyu", {"text_config": PERSIMMON, "patch_size": 2, "num_channels": 3, "image_token_id": IMAGE, "tie_word_embeddings": False}),
    "shieldgemma2": (
        "ShieldGemma2",
        {"text_config": GEMMA3, "vision_config": SIGLIP, "image_token_index": IMAGE, "mm_tokens_per_image": 4, "yes_token_index": 7, "no_token_index": 9},
    ),
    "mllama": ("Mllama", {"text_config": LLAMA_TEXT, "vision_config": TILES, "image_token_index": IMAGE, "tie_word_embeddings": False}),
    "glm4v": ("Glm4v", {"text_config": {**GLM, "model_type": "glm4v_text"}, "vision_config": GLM_EYES, **PLACED}),
    "glm46v": ("Glm46V", {"text_config": {**GLM, "model_type": "glm4v_text"}, "vision_config": {**GLM_EYES, "model_type": "glm4v_vision"}, **PLACED}),
    "glm4v_moe": ("Glm4vMoe", {"text_config": {**GLM_MOE, "model_type": "glm4v_moe_text"}, "vision_config": GLM_EYES, **PLACED}),
    "glm_ocr": ("GlmOcr", {"text_config": {**GLM, "model_type": "glm_ocr_text"}, "vision_config": GLM_EYES, **PLACED}),
    "idefics2": (
        "Idefics2",
        {
            "text_config": {**LLAMA, "model_type": "mistral"}, "vision_config": TOWER, "perceiver_config": PERCEIVER, "image_token_id": IMAGE,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinker",
        {
            "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS}, "image_token_index": IMAGE, "video_token_index": 64, "audio_token_index": 62,
            "vision_start_token_id": 65, "audio_start_token_id": 66, "tie_word_embeddings": False,
            "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8, "fullatt_block_indexes": [1]},
            "audio_config": {**LISTENER, "n_window": 4, "output_dim": 48},
        },
    ),
    "wav2vec2-bert": ("Wav2Vec2Bert", CONFORMER),
    "wav2vec2-conformer": ("Wav2Vec2Conformer", CONFORMER),
    "sew": ("SEW", {**SOUND, "squeeze_factor": 2, "conv_dim": (10, 12), "feat_extract_norm": "layer"}),
    "moonshine": (
        "Moonshine",
        {
            **KNOWN, "vocab_size": 67, "hidden_size": 60, "intermediate_size": 44, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 3, "decoder_num_attention_heads": 3, "max_position_embeddings": 32, "attention_bias": True,
        },
    ),
    "blip-2": ("Blip2", {**QUERIED, "qformer_config": {**QUERIED["qformer_config"], "use_qformer_text_input": True}, "image_token_index": None}),
    "instructblipvideo": ("InstructBlipVideo", {**QUERIED, "video_token_index": IMAGE}),
    "video_llama_3": ("VideoLlama3", {"text_config": QWEN2, "vision_config": TOWER, "image_token_id": IMAGE, "video_token_id": 64}),
    "paddleocr_vl": (
        "PaddleOCRVL",
        {
            "text_config": {**TEXT, **KNOWN, "use_bias": True, "rope_parameters": SECTIONS}, "vision_config": TOWER, "image_token_id": IMAGE,
            "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66, "tie_word_embeddings": False,
        },
    ),
    "florence2": ("Florence2", {"text_config": {**BART, "model_type": "bart"}, "vision_config": STAGES, "image_token_id": IMAGE, "tie_word_embeddings": True}),
    "got_ocr2": (
        "GotOcr2", {"text_config": QWEN2, "vision_config": WINDOWS, "image_token_index": IMAGE, "tie_word_embeddings": False},
    ),
}  # fmt: skip
"""The config of a toy, by ``model_type``, and what the names of its classes begin with."""


def _made(name: str, kind: str = "ForConditionalGeneration", **changes: Any) -> Any:
    family, settings = SENSE_CONFIGS[name]
    return getattr(tf, family + kind)(getattr(tf, f"{family}Config")(**{**settings, **changes}))


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
SENSES: dict[str, tuple[Callable[[], Any], float]] = {
    "qwen2_audio": (partial(_made, "qwen2_audio"), 1e-5),
    "voxtral": (partial(_made, "voxtral"), 1e-5),
    "audioflamingo3": (partial(_made, "audioflamingo3"), 1e-5),
    "lfm2_vl": (partial(_made, "lfm2_vl"), 1e-5),
    "lfm2_vl-plain": (partial(_made, "lfm2_vl", projector_use_layernorm=False, projector_hidden_act="relu"), 1e-5),
    "lighton_ocr": (partial(_made, "lighton_ocr"), 1e-5),
    "deepseek_vl": (partial(_made, "deepseek_vl"), 1e-5),
    "modernvbert": (partial(_made, "modernvbert", "ForMaskedLM"), 1e-5),
    "colpali": (partial(_made, "colpali", "ForRetrieval"), 1e-5),
    "colqwen2": (partial(_made, "colqwen2", "ForRetrieval"), 1e-5),
    "colmodernvbert": (partial(_made, "colmodernvbert", "ForRetrieval"), 1e-5),
    "fuyu": (partial(_made, "fuyu", "ForCausalLM"), 1e-5),
    "shieldgemma2": (partial(_made, "shieldgemma2", "ForImageClassification"), 1e-5),
    "mllama": (partial(_made, "mllama"), 1e-5),
    "glm4v": (partial(_made, "glm4v"), 1e-5),
    "glm46v": (partial(_made, "glm46v"), 1e-5),
    "glm4v_moe": (partial(_made, "glm4v_moe"), 1e-5),
    "glm_ocr": (partial(_made, "glm_ocr"), 1e-5),
    "idefics2": (partial(_made, "idefics2"), 1e-5),
    "qwen2_5_omni_thinker": (partial(_made, "qwen2_5_omni_thinker"), 1e-5),
    "wav2vec2-bert": (partial(_made, "wav2vec2-bert", "ForCTC"), 1e-9),
    "wav2vec2-bert-relative": (
        partial(
            _made,
            "wav2vec2-bert",
            "ForSequenceClassification",
            position_embeddings_type="relative",
            hidden_act="relu",
        ),
        1e-9,
    ),
    "wav2vec2-bert-adapted": (
        partial(_made, "wav2vec2-bert", "ForCTC", add_adapter=True, use_intermediate_ffn_before_adapter=True),
        1e-9,
    ),
    "wav2vec2-conformer": (partial(_made, "wav2vec2-conformer", "ForCTC"), 1e-9),
    "wav2vec2-conformer-rotary": (
        partial(_made, "wav2vec2-conformer", "ForSequenceClassification", position_embeddings_type="rotary"),
        1e-9,
    ),
    "blip-2-retrieval": (partial(_made, "blip-2", "ForImageTextRetrieval"), 1e-9),
    "instructblipvideo": (partial(_made, "instructblipvideo"), 1e-9),
    "video_llama_3": (partial(_made, "video_llama_3"), 1e-5),
    "paddleocr_vl": (partial(_made, "paddleocr_vl"), 1e-5),
    "florence2": (partial(_made, "florence2"), 1e-9),
    "got_ocr2": (partial(_made, "got_ocr2"), 1e-5),
    "sew": (partial(_made, "sew", "ForCTC"), 1e-9),
    "moonshine": (partial(_made, "moonshine"), 1e-9),
    "moonshine-untied": (partial(_made, "moonshine", tie_word_embeddings=False), 1e-9),
}
Inputs = dict[str, torch.Tensor]


def _words(rng: torch.Generator, pieces: int) -> torch.Tensor:
    """Three texts; behind the first token stand so many that stand for what is seen or heard."""
    ids = torch.randint(4, 60, (3, pieces + 9), generator=rng)
    ids[:, 1 : 1 + pieces] = IMAGE
    return ids


def _random(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _heard(pieces: int, mask: str | None = None) -> Callable[[Any, torch.Generator], Inputs]:
    """Sixteen moments of sound, of which so many tokens stand in the text."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        masks = {mask: torch.ones((3, 16), dtype=torch.long)} if mask else {}
        return {"input_ids": _words(rng, pieces), "input_features": _random(rng, 3, 7, 16), **masks}

    return made


def _in_patches(_: Any, rng: torch.Generator) -> Inputs:
    """Images as lists of patches, of two shapes."""
    return {
        "input_ids": _words(rng, 4), "pixel_values": _random(rng, 3, 16, 12), "spatial_shapes": torch.tensor([[4, 4], [2, 8], [8, 2]]),
        "pixel_attention_mask": torch.ones((3, 16), dtype=torch.long),
    }  # fmt: skip


def _in_pixels(pieces: int, tiles: int = 0, **more: torch.Tensor) -> Callable[[Any, torch.Generator], Inputs]:
    """Images of which so many tokens stand in the text; in tiles, if there are any."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        shape = (3, tiles, 3, 8, 8) if tiles else (3, 3, 8, 8)
        return {"input_ids": _words(rng, pieces), "pixel_values": _random(rng, *shape), **more}

    return made


def _in_grids(_: Any, rng: torch.Generator) -> Inputs:
    """Images as grids of patches, image by image."""
    return {
        "input_ids": _words(rng, 4), "pixel_values": _random(rng, 3, 16, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


def _in_rows(_: Any, rng: torch.Generator) -> Inputs:
    """Images as rows of patches."""
    return {"input_ids": _words(rng, 4), "pixel_values": _random(rng, 3, 4, 12)}


def _in_tiles(_: Any, rng: torch.Generator) -> Inputs:
    """Images in one or two tiles, at which all words look."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "pixel_values": _random(rng, 3, 1, 2, 3, 8, 8),
        "aspect_ratio_ids": torch.tensor([[1], [2], [3]]), "aspect_ratio_mask": torch.tensor([[[1, 0]], [[1, 1]], [[1, 1]]]),
        "cross_attention_mask": torch.tensor([[[[1, 0]]] * 11, [[[1, 1]]] * 11, [[[1, 1]]] * 11]),
    }  # fmt: skip


def _in_one_grid(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, all in a row."""
    ids = _words(rng, 4)
    return {
        "input_ids": ids, "pixel_values": _random(rng, 48, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def _seen_and_heard(_: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image each, as patches, and a sound, as moments of frequencies."""
    found = _in_one_grid(_, rng)
    found["input_ids"] = torch.randint(4, 60, (3, 18), generator=rng)
    found["input_ids"][:, 1:6] = torch.tensor([65, *[IMAGE] * 4])
    found["input_ids"][:, 8:13] = torch.tensor([66, *[62] * 4])
    del found["mm_token_type_ids"]
    return {
        **found,
        "input_features": _random(rng, 3, 7, 16),
        "feature_attention_mask": torch.ones((3, 16), dtype=torch.long),
    }


def _in_features(_: Any, rng: torch.Generator) -> Inputs:
    """Moments of frequencies, of which the last sound has fewer."""
    mask = torch.ones((3, 12), dtype=torch.long)
    mask[2, 9:] = 0
    return {"input_features": _random(rng, 3, 12, 10), "attention_mask": mask}


def _as_waves(_: Any, rng: torch.Generator) -> Inputs:
    return {"input_values": _random(rng, 3, 70)}


def _as_long_waves(_: Any, rng: torch.Generator) -> Inputs:
    """Sounds long enough for three convolutions, and the words before."""
    return {"input_values": _random(rng, 3, 2800), "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng)}


def _in_merged_grids(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches of one moment, four to be merged."""
    return {
        "input_ids": _words(rng, 4), "pixel_values": _random(rng, 48, 12), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "image_merge_sizes": torch.tensor([2, 2, 2]),
    }  # fmt: skip


def _in_squares(_: Any, rng: torch.Generator) -> Inputs:
    """Images as square patches, all in a row."""
    ids = _words(rng, 4)
    return {
        "input_ids": ids, "pixel_values": _random(rng, 48, 3, 2, 2), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def _in_stages(_: Any, rng: torch.Generator) -> Inputs:
    """Images, of which five tokens stand in the text, and the words before."""
    return {**_in_pixels(5)(_, rng), "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng)}


def _as_film(_: Any, rng: torch.Generator) -> Inputs:
    """Films of two images, and what the queries are told."""
    told = torch.randint(4, 60, (3, 5), generator=rng)
    return {"input_ids": _words(rng, 6), "pixel_values": _random(rng, 3, 2, 3, 8, 8), "qformer_input_ids": told}


SENSE_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "qwen2_audio": _heard(4, "feature_attention_mask"),
    "voxtral": _heard(2),
    "audioflamingo3": _heard(4, "input_features_mask"),
    "lfm2_vl": _in_patches,
    "lighton_ocr": _in_pixels(4, image_sizes=torch.tensor([[8, 8]] * 3)),
    "deepseek_vl": _in_pixels(16),
    "modernvbert": _in_pixels(4, 1),
    "colpali": _in_pixels(16),
    "colqwen2": _in_grids,
    "colmodernvbert": _in_pixels(4, 1),
    "fuyu": _in_rows,
    "shieldgemma2": _in_pixels(4),
    "mllama": _in_tiles,
    "florence2": _in_stages,
    "got_ocr2": _in_pixels(1),
    "video_llama_3": _in_merged_grids,
    "paddleocr_vl": _in_squares,
    "instructblipvideo": _as_film,
    "qwen2_5_omni_thinker": _seen_and_heard,
    "wav2vec2-bert": _in_features,
    **dict.fromkeys(["wav2vec2-conformer", "sew"], _as_waves),
    "moonshine": _as_long_waves,
    "idefics2": _in_pixels(3, 1),
    **dict.fromkeys(["glm4v", "glm46v", "glm4v_moe", "glm_ocr"], _in_one_grid),
}
