"""Constructors of tiny Gemmas that see and hear, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers as tf
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPooling

from toy_languages import GEMMA3N, GEMMA4, GEMMA4_ROUTED, TWO
from toy_models import LAYERS
from toy_seeing import IMAGE

SOUND = 64
"""The id of the token that stands for a piece of a sound."""
SIDE = 4
"""Patches along each side of an image."""
LENGTH = 20
"""Frames of a sound."""
WORDS = 18
"""Tokens of a text."""
GEMMA_TYPES = {
    "embedding_gemma2",
    "embedding_gemma2_text",
    "t5gemma",
    "t5gemma2",
    "t5gemma2_encoder",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
}
"""The types of models whose toys compute in float64 (see `in_double`)."""
GEMMA4_EYES: dict[str, Any] = {
    "hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
    "pooling_kernel_size": 2, "patch_size": 2, "position_embedding_size": 8,
}  # fmt: skip
GEMMA4_EARS: dict[str, Any] = {
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "subsampling_conv_channels": [8, 6], "conv_kernel_size": 3,
    "attention_chunk_size": 3, "attention_context_left": 3, "attention_context_right": 1, "output_proj_dims": 22,
}  # fmt: skip
GEMMA4_SPOKEN: dict[str, Any] = {
    **GEMMA4,
    "num_hidden_layers": 4,
    "layer_types": LAYERS * 2,
    "num_kv_shared_layers": 2,
}
"""Behind towers, whose rounding each layer makes more of."""
GEMMA4_WIDE: dict[str, Any] = {**GEMMA4_SPOKEN, "use_double_wide_mlp": True}
UNIFIED: dict[str, Any] = {
    **{k: v for k, v in GEMMA4.items() if "per_layer" not in k}, "attention_k_eq_v": True, "num_global_key_value_heads": 3,
}  # fmt: skip
UNIFIED_EYES: dict[str, Any] = {"patch_size": 2, "pooling_kernel_size": 3, "mm_embed_dim": 22, "mm_posemb_size": 8, "output_proj_dims": 22}  # fmt: skip
UNIFIED_EARS: dict[str, Any] = {"audio_embed_dim": 10}
GEMMA3N_EARS: dict[str, Any] = {
    "hidden_size": 36, "conf_num_hidden_layers": 2, "conf_num_attention_heads": 3, "sscp_conv_channel_size": [8, 6], "input_feat_size": 12,
    "conf_conv_kernel_size": 3, "conf_attention_chunk_size": 3, "conf_attention_context_left": 3, "conf_attention_context_right": 1,
    "conf_reduction_factor": 2, "vocab_offset": 64, "vocab_size": 3,
}  # fmt: skip
GEMMA3N_EYES: dict[str, Any] = {
    "hidden_size": 22,
    "vocab_offset": 60,
    "vocab_size": 4,
    "label_names": [],
    "num_labels": 0,
}
READ: dict[str, Any] = {
    **TWO, "hidden_size": 60, "num_attention_heads": 4, "head_dim": 10, "intermediate_size": 44, "layer_types": LAYERS, "sliding_window": 4,
    "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0, "attention_bias": True,
}  # fmt: skip
WRITTEN: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    "attention_bias": True,
}  # fmt: skip
TOKENS: dict[str, Any] = {"image_token_id": IMAGE, "audio_token_id": SOUND, "video_token_id": 65}


def filled(model: Any) -> Any:
    """With buffers that are stored drawn at random: bounds of clipped maps, unlike in both signs, and factors."""
    rng = torch.Generator().manual_seed(5)
    for name, b in model.named_buffers():
        if name.endswith(("put_min", "put_max")):
            b.fill_((1.0 if name.endswith("max") else -1.6) * float(0.4 + torch.rand((), generator=rng)))
        elif name.endswith(("std_bias", "std_scale", "layer_scalar")):
            b.copy_(float("bias" not in name) + torch.randn(b.shape, generator=rng) * 0.3)
    return model


class StandIn(tf.PreTrainedModel):
    """In place of timm's MobileNetV5, which is left fixed: a map of patches under two of its names (timm is not
    needed)."""

    config_class = tf.Gemma3nVisionConfig
    main_input_name = "pixel_values"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.timm_model = torch.nn.ModuleDict(
            {
                "conv_stem": torch.nn.ModuleDict({"conv": torch.nn.Conv2d(3, config.hidden_size, 4, 4)}),
                "msfa": torch.nn.ModuleDict({"norm": torch.nn.RMSNorm(config.hidden_size, eps=1e-6)}),
            }
        )
        self.post_init()

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """One vector for every patch."""
        found = self.timm_model["conv_stem"]["conv"](pixel_values).movedim(1, -1)  # type: ignore[index]
        return BaseModelOutputWithPooling(last_hidden_state=self.timm_model["msfa"]["norm"](found).movedim(-1, 1))  # type: ignore[index]


tf.AutoModel.register(tf.Gemma3nVisionConfig, StandIn, exist_ok=True)


def _gemma3n(*, tied: bool) -> Any:
    config = tf.Gemma3nConfig(
        text_config=GEMMA3N, vision_config=GEMMA3N_EYES, audio_config=GEMMA3N_EARS, tie_word_embeddings=tied, image_token_id=61,
        audio_token_id=65, vision_soft_tokens_per_image=4, audio_soft_tokens_per_image=4,
    )  # fmt: skip
    return tf.Gemma3nForConditionalGeneration(config)


def _t5gemma(kind: str = "ForConditionalGeneration", **changes: Any) -> Any:
    config = tf.T5GemmaConfig(encoder=READ, decoder=WRITTEN, vocab_size=67, **changes)
    return getattr(tf, f"T5Gemma{kind}")(config)


@contextmanager
def in_double(config: Any) -> Iterator[None]:
    """Where a Gemma with towers computes in float32 whatever its weights are, let it compute in float64.

    Its norms do so, one behind the other in two towers and the language model, and its attention to sounds runs in
    no other way.
    """
    if config.model_type not in GEMMA_TYPES:
        yield
        return
    single, rounded = torch.Tensor.float, functional.softmax

    def softmax(x: torch.Tensor, dim: int | None = None, **_: Any) -> torch.Tensor:
        return rounded(x, dim)

    torch.Tensor.float, functional.softmax = torch.Tensor.double, softmax  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.Tensor.float, functional.softmax = single, rounded  # type: ignore[method-assign]


def _gemma4(text: dict[str, Any], eyes: dict[str, Any], ears: dict[str, Any] | None, *, tied: bool) -> Any:
    ears = None if ears is None else {**GEMMA4_EARS, **ears}
    config = tf.Gemma4Config(
        text_config=text,
        vision_config={**GEMMA4_EYES, **eyes},
        audio_config=ears,
        tie_word_embeddings=tied,
        **TOKENS,
    )
    return filled(tf.Gemma4ForConditionalGeneration(config))


def _gemma4_unified() -> Any:
    config = tf.Gemma4UnifiedConfig(
        text_config=UNIFIED,
        vision_config=UNIFIED_EYES,
        audio_config=UNIFIED_EARS,
        tie_word_embeddings=False,
        **TOKENS,
    )
    return filled(tf.Gemma4UnifiedForConditionalGeneration(config))


# name -> (constructor, largest relative change of outputs that rounding explains). A norm of Gemma 3n computes in
# float32 all the same.
GEMMAS: dict[str, tuple[Callable[[], Any], float]] = {
    "t5gemma": (lambda: _t5gemma(tie_word_embeddings=False), 1e-9),
    "t5gemma-tied": (lambda: _t5gemma(tie_word_embeddings=True), 1e-9),
    "t5gemma-labels": (lambda: _t5gemma("ForSequenceClassification", num_labels=5), 1e-9),
    "gemma3n": (lambda: _gemma3n(tied=False), 1e-5),
    "gemma3n-tied": (lambda: _gemma3n(tied=True), 1e-5),
    "gemma4": (lambda: _gemma4(GEMMA4_SPOKEN, {"standardize": True}, {"use_clipped_linears": False}, tied=False), 1e-9),
    "gemma4-clipped": (lambda: _gemma4(GEMMA4_WIDE, {"use_clipped_linears": True}, {}, tied=True), 1e-9),
    "gemma4-routed": (lambda: _gemma4({**GEMMA4_ROUTED, "use_bidirectional_attention": "vision"}, {"standardize": True}, None, tied=True), 1e-9),
    "gemma4_unified": (_gemma4_unified, 1e-9),
}  # fmt: skip


def _text(rng: torch.Generator, images: list[int], sounds: list[int]) -> dict[str, torch.Tensor]:
    """Texts in which so many tokens stand for an image, behind the first one, and then so many for a sound."""
    ids = torch.randint(4, 60, (len(images), WORDS), generator=rng)
    for row, (seen, heard) in enumerate(zip(images, sounds, strict=True)):
        ids[row, 1 : 1 + seen] = IMAGE
        ids[row, 2 + seen : 2 + seen + heard] = SOUND
    return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int()}


def _places(kernel: int) -> torch.Tensor:
    """Columns and rows of the patches of three images, of which the last has but the upper half."""
    side = SIDE // kernel
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([columns.flatten(), rows.flatten()], -1).repeat(3, 1, 1)
    places[2, side * side // 2 :] = -1
    return places


def gemma4_inputs(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images of two sizes as patches, sounds of two lengths as spectra, and texts."""
    heard = torch.ones((3, LENGTH), dtype=torch.bool)
    heard[2, LENGTH // 2 :] = False
    found = _text(rng, [4, 4, 2], [5, 5, 3] if config.audio_config else [0, 0, 0])
    found["pixel_values"] = torch.rand((3, SIDE * SIDE, 3 * 2 * 2), generator=rng, dtype=torch.float64)
    found["image_position_ids"] = _places(1)
    if config.audio_config:
        bands = config.audio_config.subsampling_conv_channels[0]
        found["input_features"] = torch.randn((3, LENGTH, bands), generator=rng, dtype=torch.float64)
        found["input_features_mask"] = heard
    return found


def gemma4_unified_inputs(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images of two sizes as large patches, sounds of two lengths as waves, and texts."""
    heard = torch.ones((3, 5), dtype=torch.bool)
    heard[2, 3:] = False
    width = config.audio_config.audio_embed_dim
    return {
        **_text(rng, [4, 4, 2], [5, 5, 3]),
        "pixel_values": torch.rand((3, 4, 3 * 6 * 6), generator=rng, dtype=torch.float64),
        "image_position_ids": _places(2),
        "input_features": torch.randn((3, 5, width), generator=rng, dtype=torch.float64),
        "input_features_mask": heard,
    }


def gemma3n_inputs(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images, sounds of two lengths as spectra, and texts with further tokens of both towers."""
    ids = torch.randint(4, 60, (3, WORDS), generator=rng)
    ids[:, 1:5], ids[:, 6:10] = config.image_token_id, config.audio_token_id
    ids[:, 11:14] = torch.tensor([60, 62, 64])
    heard = torch.ones((3, LENGTH + 4), dtype=torch.bool)
    heard[2, LENGTH // 2 :] = False
    bands = config.audio_config.input_feat_size
    return {
        "input_ids": ids,
        "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64),
        "input_features": torch.randn((3, LENGTH + 4, bands), generator=rng, dtype=torch.float64),
        "input_features_mask": heard,
    }
