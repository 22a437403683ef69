"""Gemmas that see and hear, and embeddings made of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf
from transformers.modeling_outputs import BaseModelOutputWithPooling

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import in_pixels
from toy_models import composed, composite
from toy_settings import (
    COMPOSED_MODELS,
    GEMMA3N,
    GEMMA4,
    GEMMA4_ROUTED,
    IMAGE,
    KNOWN,
    LAYERS,
    SIGLIP,
    TIED,
    TOWER_OF_PATCHES,
    TOWERS,
    UNIFIED,
)


def _paligemma() -> Any:
    vision = tf.SiglipVisionConfig(**TOWER_OF_PATCHES, vision_use_head=False)
    return composite("PaliGemma", tf.GemmaConfig(**TIED), vision, projection_dim=TIED["hidden_size"])


def _gemma3() -> Any:
    text = tf.Gemma3TextConfig(**TIED, layer_types=LAYERS, sliding_window=4, query_pre_attn_scalar=8)
    vision = tf.SiglipVisionConfig(**TOWER_OF_PATCHES, vision_use_head=False)
    return composite("Gemma3", text.to_dict(), vision.to_dict(), mm_tokens_per_image=1)


EYES, EARS = "gemma4_vision", "gemma4_audio"
SPOKEN = "gemma3n_audio"
SIGLIP_TOWER = {**TOWERS["vision_config"], "model_type": "siglip_vision_model", "vision_use_head": False}
SOUND = 64
"""The id of the token that stands for a piece of a sound."""
SIDE = 4
"""Patches along each side of an image."""
LENGTH = 20
"""Frames of a sound."""
WORDS = 18
"""Tokens of a text."""
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


GEMMA: dict[str, Any] = {**TIED, **KNOWN, "model_type": "gemma"}
GEMMA3_TEXT: dict[str, Any] = {
    **TIED, **KNOWN, "model_type": "gemma3_text", "layer_types": LAYERS, "sliding_window": 4, "query_pre_attn_scalar": 8,
}  # fmt: skip
PALIGEMMA: dict[str, Any] = {
    "model_type": "paligemma", "text_config": GEMMA, "vision_config": SIGLIP, "projection_dim": 48, "image_token_index": IMAGE,
}  # fmt: skip
COLPALI: dict[str, Any] = {"vlm_config": PALIGEMMA, "embedding_dim": 20}  # fmt: skip
SHIELDGEMMA2: dict[str, Any] = {"text_config": GEMMA3_TEXT, "vision_config": SIGLIP, "image_token_index": IMAGE, "mm_tokens_per_image": 4, "yes_token_index": 7, "no_token_index": 9}  # fmt: skip
EMBEDDING: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "global_head_dim": 12, "num_global_key_value_heads": 2,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"], "hidden_size_per_layer_input": 20, "embedding_dim": 14, "sliding_window": 3,
    "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip


def _embedding() -> Any:
    config = tf.EmbeddingGemma2Config(
        text_config=EMBEDDING,
        vision_config={**GEMMA4_EYES, "model_type": "gemma4_vision"},
        audio_config={**GEMMA4_EARS, "model_type": "gemma4_audio"},
        **TOKENS,
    )
    return filled(tf.EmbeddingGemma2Model(config))


MORE_TOYS: dict[str, Toy] = {
    "paligemma": (_paligemma, 1e-5),
    "gemma3": (_gemma3, 1e-5),
    "gemma3n": (lambda: _gemma3n(tied=False), 1e-5),
    "gemma3n-tied": (lambda: _gemma3n(tied=True), 1e-5),
    "gemma4": (
        lambda: _gemma4(GEMMA4_SPOKEN, {"standardize": True}, {"use_clipped_linears": False}, tied=False),
        1e-9,
    ),
    "gemma4-clipped": (lambda: _gemma4(GEMMA4_WIDE, {"use_clipped_linears": True}, {}, tied=True), 1e-9),
    "gemma4-routed": (
        lambda: _gemma4(
            {**GEMMA4_ROUTED, "use_bidirectional_attention": "vision"}, {"standardize": True}, None, tied=True
        ),
        1e-9,
    ),
    "gemma4_unified": (_gemma4_unified, 1e-9),
    "colpali": (partial(composed, "ColPali", COLPALI, "ForRetrieval"), 1e-5),
    "shieldgemma2": (partial(composed, "ShieldGemma2", SHIELDGEMMA2, "ForImageClassification"), 1e-5),
    "embedding_gemma2": (_embedding, 1e-9),
    "embedding_gemma2_text": (
        lambda: tf.EmbeddingGemma2TextModel(tf.EmbeddingGemma2TextConfig(**EMBEDDING, attention_bias=True)),
        1e-9,
    ),
}

NAMES: dict[str, Saved] = {
    "PaliGemma": (
        {"text_config": {**TIED, "model_type": "gemma2"}, "vision_config": SIGLIP_TOWER, "projection_dim": 48},
        COMPOSED_MODELS,
    ),
    "Gemma3": ({"text_config": TIED, "vision_config": SIGLIP_TOWER}, COMPOSED_MODELS),
}

MORE_NAMES: dict[str, Saved] = {
    "Gemma3n": (
        {"text_config": GEMMA3N, "vision_config": GEMMA3N_EYES, "audio_config": GEMMA3N_EARS},
        COMPOSED_MODELS,
    ),
    "Gemma3nAudio": (GEMMA3N_EARS, ["Encoder"]),
    "Gemma4": ({"text_config": GEMMA4, "vision_config": GEMMA4_EYES, "audio_config": GEMMA4_EARS}, COMPOSED_MODELS),
    "Gemma4Vision": (GEMMA4_EYES, ["Model"]),
    "Gemma4Audio": (GEMMA4_EARS, ["Model"]),
    "Gemma4Unified": (
        {"text_config": UNIFIED, "vision_config": UNIFIED_EYES, "audio_config": UNIFIED_EARS},
        COMPOSED_MODELS,
    ),
    "ColPali": (COLPALI, ["ForRetrieval"]),
    "ShieldGemma2": (SHIELDGEMMA2, ["ForImageClassification"]),
    "EmbeddingGemma2": ({"text_config": EMBEDDING}, ["Model"]),
    "EmbeddingGemma2Text": (EMBEDDING, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    "paligemma": {"res": "SignedPerm", "vision_res": "OFixingOnes"},
    **{key: {"res": "SignedPerm", "vision_res": "Perm"} for key in ["gemma3", "shieldgemma2"]},
    **{key: {"res": "SignedPerm", "audio_res": "SignedPerm", "pl": "Perm"} for key in ["gemma3n", "gemma3n-tied"]},
    "gemma4": {"res": "SignedPerm", "vision_res": "SignedPerm", "audio_res": "SignedPerm", "pl": "Perm"},
    "gemma4-clipped": {"res": "SignedPerm", "pl": "Perm", "vision_res": "Perm", "audio_res": "Perm"},
    "gemma4-routed": {"res": "SignedPerm", "vision_res": "SignedPerm"},
    "gemma4_unified": {"res": "SignedPerm"},
    "colpali": {"res": "O", "vision_res": "OFixingOnes"},
    "embedding_gemma2": {"res": "SignedPerm", "pl": "Perm", "vision_res": "SignedPerm", "audio_res": "Perm"},
    "embedding_gemma2_text": {"res": "SignedPerm", "pl": "Perm"},
}

IDLE = {
    ("colpali", "vb"),
    ("gemma3", "vb"),
    ("paligemma", "vb"),
    ("shieldgemma2", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "embedding_gemma2": lambda config, rng: {
        k: v for k, v in gemma4_inputs(config, rng).items() if k != "mm_token_type_ids"
    },
    "gemma3n": gemma3n_inputs,
    "gemma4": gemma4_inputs,
    "gemma4_unified": gemma4_unified_inputs,
    "colpali": in_pixels(16),
    "shieldgemma2": in_pixels(4),
}

MUTANTS = [
    mutant("paligemma", "projection past the last gain", "vision_nf", "(vision_res vision_nf)' => vision_res'"),
    mutant("paligemma", "projector's bias forgotten", "res", "linear.bias res => linear.bias rows"),
    mutant("gemma3", "gains stored as they act", "ns", "diag(vision_res ns) - 1 => diag(vision_res ns)"),
    mutant(
        "gemma3",
        "the tower's last gain folded past a norm",
        "vision_nf",
        " without nf => ",
        "(vision_res ns)' res => (vision_res vision_nf ns)' res",
    ),
    mutant(
        "gemma3n",
        "tokens of sounds in other coordinates",
        "audio_res",
        "embed_audio.embedding.weight token audio_res => embed_audio.embedding.weight token elsewhere",
    ),
    mutant("gemma3n", "sounds read in another order", "audio_res", "res audio_res' => res elsewhere"),
    mutant(
        "gemma3n",
        "one gain folded where two are read",
        "ns",
        "embed_vision.embedding.weight => residual ns: Scale[audio_res]\nembed_vision.embedding.weight",
        "soft_embedding_norm.weight diag(audio_res) => soft_embedding_norm.weight diag(audio_res ns)",
        "res audio_res' => res (audio_res ns)'",
    ),
    mutant(
        "gemma3n-tied",
        "patches written in other coordinates",
        "res",
        "embed_vision.embedding_projection.weight res piece => embed_vision.embedding_projection.weight rows piece",
    ),
    mutant(
        "gemma3n",
        "positions of keys forgotten",
        "audio_t",
        "pos_proj.weight (h qk t') => pos_proj.weight (h qk)",
        part=SPOKEN,
    ),
    mutant(
        "gemma3n",
        "gate and value mistaken",
        "audio_u",
        "[channel u | channel] => [channel | channel u]",
        part=SPOKEN,
    ),
    mutant("gemma3n", "channels slow", "audio_c1", "(frequency c1 u1)' => (c1 u1 frequency)'", part=SPOKEN),
    mutant(
        "gemma3n",
        "negative factor through ReLU",
        "audio_u1",
        "u1 as scale: PositiveScale => u1 as scale: Scale",
        part=SPOKEN,
    ),
    mutant(
        "gemma3n",
        "the norm at a layer's end forgotten",
        "audio_res",
        "{l}.norm.weight diag(res) => {l}.norm.weight rows",
        part=SPOKEN,
    ),
    mutant(
        "gemma4",
        "the tower's coordinates read in another order",
        "vision_res",
        "projection.weight res vision_res' => projection.weight res other",
    ),
    mutant("gemma4", "patches written in other coordinates", "res", "res vision_res' => rows vision_res'"),
    mutant("gemma4-clipped", "sounds not turned back", "audio_out", "res audio_out' => res columns"),
    mutant("gemma4-routed", "patches written in other coordinates", "res", "res vision_res' => rows vision_res'"),
    mutant(
        "gemma4-clipped",
        "gate of a wide layer forgotten",
        "wff",
        ":depth-wide..depth}.mlp.gate_proj.weight wff => :depth-wide..depth}.mlp.gate_proj.weight rows",
        part="gemma4_text",
    ),
    mutant(
        "gemma4-clipped",
        "a factor on a wide layer's gate",
        "wu",
        "mlp.gate_proj.weight wff => mlp.gate_proj.weight (wff wu)",
        part="gemma4_text",
    ),
    mutant(
        "gemma4",
        "one part for rows and columns",
        "vision_sg",
        "(kv g part c pair sg) => (kv g c part pair sg)",
        "(kv part c pair sg) => (kv c part pair sg)",
        part=EYES,
    ),
    mutant(
        "gemma4",
        "interleaved pairs",
        "vision_t",
        "(part c pair t) => (part pair c t)",
        "(part c pair t') => (part pair c t')",
        part=EYES,
    ),
    mutant("gemma4", "gains not dual", "vision_t", "(part c pair t') => (part c pair t)", part=EYES),
    mutant(
        "gemma4",
        "any matrix behind the norm of values",
        "vision_ov",
        "space ov: O[l, kv] => space ov: GL[l, kv]",
        part=EYES,
    ),
    mutant("gemma4", "groups fast", "vision_kv", "(kv g part => (g kv part", "(kv g ov') => (g kv ov')", part=EYES),
    mutant(
        "gemma4", "the shift behind the tower forgotten", "vision_res", "std_bias res => std_bias rows", part=EYES
    ),
    mutant("gemma4", "positions forgotten", "vision_res", "2 pos res => 2 pos other", part=EYES),
    mutant(
        "gemma4-clipped",
        "signs past bounds",
        "vision_res",
        "res: Perm if clip => res: SignedPerm if clip",
        part=EYES,
    ),
    mutant(
        "gemma4-clipped",
        "signs of keys past bounds",
        "vision_sg",
        "part, pair] if not clip => part, pair]",
        part=EYES,
    ),
    mutant(
        "gemma4-clipped",
        "gains past bounds",
        "vision_n1",
        "n1: Scale[l, res] if not clip => n1: Scale[l, res]",
        part=EYES,
    ),
    mutant(
        "gemma4-clipped",
        "rotations past bounds",
        "vision_ov",
        "ov: Perm[l, kv] if clip => ov: O[l, kv] if clip",
        part=EYES,
    ),
    mutant(
        "gemma4-clipped", "factors past bounds", "vision_u", "Scale[l, ff] if not clip => Scale[l, ff]", part=EYES
    ),
    mutant(
        "gemma4",
        "positions of keys forgotten",
        "audio_t",
        "relative_k_proj.weight (h qk t') => relative_k_proj.weight (h qk)",
        part=EARS,
    ),
    mutant(
        "gemma4",
        "keys of positions in another order",
        "audio_h",
        "relative_k_proj.weight (h qk t') => relative_k_proj.weight rows",
        part=EARS,
    ),
    mutant(
        "gemma4",
        "any matrix under factors per coordinate",
        "audio_qk",
        "space t as qk: Scale[l, h, qk] if not clip => space qk: GL[l, h]",
        "(h qk t') => (h qk')",
        "(h qk t) => (h qk)",
        "per_dim_scale qk => per_dim_scale rows",
        part=EARS,
    ),
    mutant(
        "gemma4", "gate and value mistaken", "audio_u", "[channel u | channel] => [channel | channel u]", part=EARS
    ),
    mutant(
        "gemma4",
        "the norm of channels forgotten",
        "audio_channel",
        "conv_norm.weight channel => conv_norm.weight rows",
        part=EARS,
    ),
    mutant("gemma4", "channels slow", "audio_c1", "(frequency c1 u1)' => (c1 u1 frequency)'", part=EARS),
    mutant(
        "gemma4",
        "negative factor through ReLU",
        "audio_u0",
        "u0 as scale: PositiveScale => u0 as scale: Scale",
        part=EARS,
    ),
    mutant(
        "gemma4",
        "the norm at a layer's end forgotten",
        "audio_res",
        "norm_out.weight diag(res) => norm_out.weight rows",
        part=EARS,
    ),
    mutant(
        "gemma4-clipped",
        "signs past bounds",
        "audio_res",
        "res: Perm if clip => res: SignedPerm if clip",
        part=EARS,
    ),
    mutant(
        "gemma4-clipped",
        "any matrix past bounds",
        "audio_ov",
        "ov: Perm[l, h] if clip => ov: GL[l, h] if clip",
        part=EARS,
    ),
    mutant(
        "gemma4-clipped",
        "factors past bounds",
        "audio_t",
        "Scale[l, h, qk] if not clip => Scale[l, h, qk]",
        part=EARS,
    ),
    mutant(
        "gemma4_unified",
        "positions forgotten",
        "patch",
        "pos_embedding pos 2 patch => pos_embedding pos 2 other",
        "returns patch res => returns res",
    ),
    mutant(
        "gemma4_unified",
        "the norm's bias forgotten",
        "patch",
        "pos_norm.bias patch => pos_norm.bias rows",
        "returns patch res => returns res",
    ),
    mutant(
        "gemma4_unified",
        "signs under norms that centre",
        "patch",
        "patch as ff: Perm => patch as ff: SignedPerm",
        "returns patch res => returns res",
    ),
    mutant("gemma4_unified", "sounds written in other coordinates", "res", "res frame => rows frame"),
    mutant("colpali", "past the last gain", "nf", "shared (res nf)' => shared res'"),
    mutant("shieldgemma2", "the last gain in a tied head", "nf", "of gemma3_text without nf => of gemma3_text"),
    mutant("embedding_gemma2_text", "any matrix on values behind a norm", "ov", "ov: O[l, kv] => ov: GL[l, kv]"),
    mutant(
        "embedding_gemma2_text",
        "what layers add scaled in front of its norm",
        "pt",
        "(depth pl) res' => (depth pl pt) res'",
    ),
    mutant(
        "embedding_gemma2_text",
        "gates in other coordinates",
        "pl",
        "per_layer_input_gate.weight pl => per_layer_input_gate.weight other",
    ),
    mutant(
        "embedding_gemma2_text",
        "halves of a head turned together",
        "fsg",
        "c fpair fsg => fpair c fsg",
        "(c fpair ft) => (fpair c ft)",
        "(c fpair ft') => (fpair c ft')",
    ),
    mutant(
        "embedding_gemma2",
        "embeddings past the last gain",
        "nf",
        "embedding (res nf)' => embedding res'",
        part="embedding_gemma2_text",
    ),
]
