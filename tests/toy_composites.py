"""Constructors of tiny models that are made of others, and of the towers they are made of (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

from toy_models import LAYERS, TIED, TOWERS

TEXT = {**TIED, "tie_word_embeddings": False}
PATCHES = {**TOWERS["vision_config"], "hidden_act": "gelu"}
IMAGE = 3
"""The id of the token that stands for a piece of an image."""


def _composite(kind: str, text: Any, vision: Any, **settings: Any) -> Any:
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config=vision, image_token_index=IMAGE, pad_token_id=0, **settings
    )
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


def _llava(text: Any) -> Any:
    return _composite("Llava", text, tf.CLIPVisionConfig(**PATCHES), projector_hidden_act="relu")


def _vipllava() -> Any:
    tower = tf.CLIPVisionConfig(**PATCHES)
    return _composite(
        "VipLlava", tf.LlamaConfig(**TEXT), tower, vision_feature_layer=[-2, -1, 1], projector_hidden_act="relu"
    )


def _paligemma() -> Any:
    vision = tf.SiglipVisionConfig(**PATCHES, vision_use_head=False)
    return _composite("PaliGemma", tf.GemmaConfig(**TIED), vision, projection_dim=TIED["hidden_size"])


def _gemma3() -> Any:
    text = tf.Gemma3TextConfig(**TIED, layer_types=LAYERS, sliding_window=4, query_pre_attn_scalar=8)
    vision = tf.SiglipVisionConfig(**PATCHES, vision_use_head=False)
    return _composite("Gemma3", text.to_dict(), vision.to_dict(), mm_tokens_per_image=1)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
COMPOSITES: dict[str, tuple[Callable[[], Any], float]] = {
    "clip_text_model": (
        lambda: tf.CLIPTextModelWithProjection(tf.CLIPTextConfig(**TOWERS["text_config"], projection_dim=20)), 1e-9,
    ),
    "clip_vision_model": (
        lambda: tf.CLIPVisionModelWithProjection(tf.CLIPVisionConfig(**TOWERS["vision_config"], projection_dim=20)), 1e-9,
    ),
    "siglip_vision_model": (lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**PATCHES)), 1e-9),
    "llava": (lambda: _llava(tf.LlamaConfig(**TEXT)), 1e-5),
    "llava-qwen2": (lambda: _llava(tf.Qwen2Config(**TEXT)), 1e-5),
    "vipllava": (_vipllava, 1e-5),
    "paligemma": (_paligemma, 1e-5),
    "gemma3": (_gemma3, 1e-5),
}  # fmt: skip
