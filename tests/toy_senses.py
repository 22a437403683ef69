"""Constructors of tiny models that see, hear or read pages: towers, projectors and language models in other
combinations (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
    "kosmos-2": (
        "Kosmos2",
        {
            "text_config": {
                **KNOWN, "vocab_size": 67, "embed_dim": 48, "layers": 2, "ffn_dim": 40, "attention_heads": 6, "max_position_embeddings": 32,
                "add_cross_attention": False,
            },
            "vision_config": TOWER, "latent_query_num": 3,
        },
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
    "kosmos-2": (partial(_made, "kosmos-2"), 1e-9),
    "sew": (partial(_made, "sew", "ForCTC"), 1e-9),
    "moonshine": (partial(_made, "moonshine"), 1e-9),
    "moonshine-untied": (partial(_made, "moonshine", tie_word_embeddings=False), 1e-9),
}
