"""Constructors of tiny encoders of texts and images (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

WORDS = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "max_position_embeddings": 32,
}  # fmt: skip
PIXELS = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40, "image_size": 8,
    "patch_size": 4, "num_labels": 5,
}  # fmt: skip
CAPTIONS = {
    "text_config": {
        **WORDS, "encoder_hidden_size": 60, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0,
    },
    "vision_config": {
        **{k: v for k, v in PIXELS.items() if k != "num_labels"},
        "hidden_size": 60, "num_attention_heads": 5, "intermediate_size": 44, "hidden_act": "relu",
    },
    "projection_dim": 20, "image_text_hidden_size": 18,
}  # fmt: skip
ANSWERS = {
    **CAPTIONS, "text_config": {**CAPTIONS["text_config"], "encoder_hidden_size": 48},
    "vision_config": {**CAPTIONS["vision_config"], "hidden_size": 48, "num_attention_heads": 4},
}  # fmt: skip
BY_PLACE = {**PIXELS, "use_relative_position_bias": True}


def _xl(kind: str, **changes: Any) -> Any:
    return getattr(tf, f"XLMRobertaXL{kind}")(tf.XLMRobertaXLConfig(**{**WORDS, **changes}))


def _beit(kind: str, **changes: Any) -> Any:
    return getattr(tf, f"Beit{kind}")(tf.BeitConfig(**{**PIXELS, **changes}))


# name -> (constructor, largest relative change of outputs that rounding explains)
ENCODED: dict[str, tuple[Callable[[], Any], float]] = {
    "nomic_bert": (lambda: tf.NomicBertForMaskedLM(tf.NomicBertConfig(**WORDS)), 1e-5),
    "xlm-roberta-xl": (lambda: _xl("ForSequenceClassification", intermediate_size=36), 1e-9),
    "xlm-roberta-xl-words": (lambda: _xl("ForMaskedLM", hidden_act="relu"), 1e-9),
    "beit": (
        lambda: _beit("ForImageClassification", use_relative_position_bias=True, use_absolute_position_embeddings=True),
        1e-9,
    ),
    "beit-shared": (
        lambda: _beit(
            "ForMaskedImageModeling", vocab_size=9, use_shared_relative_position_bias=True, use_mask_token=True,
            layer_scale_init_value=0.0, hidden_act="relu",
        ),
        1e-9,
    ),
    "data2vec-vision": (
        lambda: tf.Data2VecVisionForImageClassification(
            tf.Data2VecVisionConfig(**BY_PLACE, use_mean_pooling=False)
        ),
        1e-9,
    ),
    "blip": (lambda: tf.BlipForConditionalGeneration(tf.BlipConfig(**CAPTIONS)), 1e-9),
    "blip-answers": (lambda: tf.BlipForQuestionAnswering(tf.BlipConfig(**ANSWERS)), 1e-9),
    "blip-contrast": (lambda: tf.BlipModel(tf.BlipConfig(**CAPTIONS)), 1e-9),
    "blip-retrieval": (lambda: tf.BlipForImageTextRetrieval(tf.BlipConfig(**CAPTIONS)), 1e-9),
}  # fmt: skip
