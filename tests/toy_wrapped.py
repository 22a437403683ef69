"""Constructors of tiny models that put known towers before known language models in yet other ways, and towers
alone (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as tf

from toy_draws import drawn_numbers, drawn_words
from toy_gemmas import GEMMA4_EARS, GEMMA4_EYES, TOKENS, filled, gemma4_inputs
from toy_seeing import GRID, IMAGE, SECTIONS, TEXT
from toy_senses import HEARD, KNOWN, QWEN2, SIGLIP2

Inputs = dict[str, torch.Tensor]
WORDS: dict[str, Any] = {**TEXT, **KNOWN, "num_hidden_layers": 2}
PLACED: dict[str, Any] = {**WORDS, "rope_parameters": SECTIONS}
"""A text model whose positions have three parts: time, row and column."""
EYE: dict[str, Any] = {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44}
WINDOWED: dict[str, Any] = {**EYE, "window_size": 8, "fullatt_block_indexes": [1]}
DEEP: dict[str, Any] = {**EYE, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
SEEN: dict[str, Any] = {"image_token_id": IMAGE, "video_token_id": 64, "tie_word_embeddings": False}
BOUNDED: dict[str, Any] = {**SEEN, "vision_start_token_id": 65, "vision_end_token_id": 66}
LIVE: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "head_dim": 8, "intermediate_size": 44, "num_mel_bins": 7, "max_position_embeddings": 64, "sliding_window": 9,
}  # fmt: skip
EAR: dict[str, Any] = {
    "hidden_size": 72, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 288, "num_mel_bins": 7, "max_position_embeddings": 16,
    "model_type": "glmasr_encoder",
}  # fmt: skip
LISTENING: dict[str, Any] = {"audio_token_id": IMAGE, "tie_word_embeddings": False}
# Every second layer of Compass has no positions.
COMPASS: dict[str, Any] = {
    **WORDS, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "logit_scale": 0.5,
    "rope_parameters": {"sliding_attention": SECTIONS, "full_attention": None},
}  # fmt: skip
EDGE: dict[str, Any] = {k: v for k, v in SIGLIP2.items() if k not in ("vision_use_head", "model_type")}
EMBEDDING: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "global_head_dim": 12, "num_global_key_value_heads": 2,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"], "hidden_size_per_layer_input": 20, "embedding_dim": 14, "sliding_window": 3,
    "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
WRAPPED_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "hyperclovax_vision_v2": (
        "HyperCLOVAXVisionV2", {"text_config": {**WORDS, "model_type": "hyperclovax"}, "vision_config": {**WINDOWED, "out_hidden_size": 20, "model_type": "qwen2_5_vl_vision"}, **SEEN},
    ),
    "cohere_compass": ("CohereCompass", {"text_config": COMPASS, "vision_config": DEEP, **BOUNDED}),
    "cosmos3_edge": ("Cosmos3Edge", {"text_config": PLACED, "vision_config": {**EDGE, "spatial_merge_size": 2}, "projector_hidden_size": 36, **BOUNDED}),
    "musicflamingo": ("MusicFlamingo", {"text_config": QWEN2, "audio_config": {**HEARD, "model_type": "audioflamingo3_encoder"}, **LISTENING, "audio_bos_token_id": 64, "audio_eos_token_id": 65, "audio_frame_step": 30.0}),
    "voxtral_realtime": ("VoxtralRealtime", {"text_config": {**WORDS, "sliding_window": 6, "tie_word_embeddings": False}, "audio_config": LIVE, "tie_word_embeddings": False}),
    "glmasr": ("GlmAsr", {"text_config": {**WORDS, "model_type": "llama"}, "audio_config": EAR, **LISTENING}),
}  # fmt: skip


def _made(name: str) -> Any:
    kind, settings = WRAPPED_CONFIGS[name]
    return getattr(tf, f"{kind}ForConditionalGeneration")(getattr(tf, f"{kind}Config")(**settings))


def _embedding() -> Any:
    config = tf.EmbeddingGemma2Config(
        text_config=EMBEDDING,
        vision_config={**GEMMA4_EYES, "model_type": "gemma4_vision"},
        audio_config={**GEMMA4_EARS, "model_type": "gemma4_audio"},
        **TOKENS,
    )
    return filled(tf.EmbeddingGemma2Model(config))


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
WRAPPED: dict[str, tuple[Callable[[], Any], float]] = {
    **{name: (partial(_made, name), 1e-5) for name in WRAPPED_CONFIGS},
    "embedding_gemma2": (_embedding, 1e-9),
    "embedding_gemma2_text": (
        lambda: tf.EmbeddingGemma2TextModel(tf.EmbeddingGemma2TextConfig(**EMBEDDING, attention_bias=True)),
        1e-9,
    ),
    "qwen2_5_vl_vision": (
        lambda: tf.Qwen2_5_VisionTransformerPretrainedModel(tf.Qwen2_5_VLVisionConfig(**WINDOWED)),
        1e-5,
    ),
}


def _seen(depth: int) -> Callable[[Any, torch.Generator], Inputs]:
    """Texts with an image each, as patches of so many numbers, all in a row."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        ids = drawn_words(rng, 4)
        return {
            "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, depth), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
            "mm_token_type_ids": (ids == IMAGE).int(),
        }  # fmt: skip

    return made


def _heard(pieces: int) -> Callable[[Any, torch.Generator], Inputs]:
    """Texts with a sound each, which so many tokens stand for."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        found = {"input_ids": drawn_words(rng, pieces), "input_features": drawn_numbers(rng, 3, 7, 16)}
        return {**found, "input_features_mask": torch.ones((3, 16), dtype=torch.long)}

    return made


def _live(_: Any, rng: torch.Generator) -> Inputs:
    """Texts to each word of which eight moments of sound are added."""
    return {
        "input_ids": torch.randint(4, 60, (3, 6), generator=rng),
        "input_features": drawn_numbers(rng, 3, 7, 48),
    }


def _alone(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, for a tower alone."""
    return {"hidden_states": drawn_numbers(rng, 48, 24), "grid_thw": torch.tensor([[1, 4, 4]] * 3)}


WRAPPED_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "hyperclovax_vision_v2": lambda config, rng: {
        k: v for k, v in _seen(24)(config, rng).items() if k != "mm_token_type_ids"
    },
    "cohere_compass": _seen(24),
    "cosmos3_edge": _seen(12),
    "musicflamingo": _heard(4),
    "glmasr": _heard(2),
    "embedding_gemma2": lambda config, rng: {
        k: v for k, v in gemma4_inputs(config, rng).items() if k != "mm_token_type_ids"
    },
    "voxtral_realtime": _live,
    "qwen2_5_vl_vision": _alone,
}
"""By model type: how its inputs are made."""
