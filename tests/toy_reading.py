"""Constructors of tiny models that see images, read pages, screens and plots, or translate what is said, and their
inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from toy_draws import drawn_numbers

Inputs = dict[str, torch.Tensor]
POOLED: dict[str, Any] = {
    "embed_dim": 12, "image_size": [16, 16], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1], "mlp_ratio": 1.5, "depths": [2, 2, 2, 2],
    "num_heads": [2, 3, 4, 6], "masked_unit_size": [8, 8], "num_labels": 5,
}  # fmt: skip
PAGE: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "d_kv": 9, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 5, "max_2d_position_embeddings": 20,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
SCREEN: dict[str, Any] = {
    "vision_config": {"hidden_size": 48, "patch_embed_hidden_size": 12, "d_ff": 44, "d_kv": 9, "num_hidden_layers": 2, "num_attention_heads": 5, "seq_len": 10},
    "text_config": {
        "vocab_size": 67, "hidden_size": 48, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 6, "relative_attention_num_buckets": 8, "is_decoder": True,
    },
    "tie_word_embeddings": False,
}  # fmt: skip
TRANSLATING: dict[str, Any] = {
    "vocab_size": 67, "t2u_vocab_size": 31, "hidden_size": 48, "encoder_layers": 2, "encoder_ffn_dim": 40, "encoder_attention_heads": 6, "decoder_layers": 2,
    "decoder_ffn_dim": 36, "decoder_attention_heads": 4, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 3, "speech_encoder_intermediate_size": 44,
    "feature_projection_input_dim": 10, "adaptor_kernel_size": 3, "adaptor_stride": 2, "conv_depthwise_kernel_size": 3, "max_position_embeddings": 32,
    "max_source_positions": 32, "t2u_encoder_layers": 1, "t2u_encoder_ffn_dim": 28, "t2u_encoder_attention_heads": 3, "t2u_decoder_layers": 1,
    "t2u_decoder_ffn_dim": 20, "t2u_decoder_attention_heads": 4, "unit_hifi_gan_vocab_size": 31, "unit_embed_dim": 8, "lang_embed_dim": 4, "spkr_embed_dim": 4,
    "vocoder_num_langs": 3, "vocoder_num_spkrs": 2, "upsample_initial_channel": 8, "upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "variance_predictor_kernel_size": 3,
}  # fmt: skip
TRANSLATING_2: dict[str, Any] = {
    **TRANSLATING, "char_vocab_size": 23, "left_max_position_embeddings": 3, "right_max_position_embeddings": 2, "t2u_variance_predictor_embed_dim": 48,
    "t2u_variance_predictor_hidden_dim": 12,
}  # fmt: skip


def translates(folder: Path, config: Any, dtype: torch.dtype, given: Inputs) -> torch.Tensor | None:
    """What SeamlessM4T writes of texts and of sounds, and which units of speech: the whole runs one way at a time.
    None of others."""
    if config.model_type not in ("seamless_m4t", "seamless_m4t_v2") or not config.architectures[0].endswith(
        "Model"
    ):
        return None
    model = getattr(tf, config.architectures[0]).from_pretrained(folder, dtype=dtype).eval()
    words, sounds = given["input_ids"], given["input_features"]
    later = {"decoder_input_ids": given["decoder_input_ids"], "use_cache": False}
    units: dict[str, torch.Tensor] = {"decoder_input_ids": given["decoder_input_ids"] % 31}
    if config.model_type == "seamless_m4t_v2":
        units = {"char_input_ids": words[:, :10] % 23, "char_count_per_id": torch.full((3, 5), 2)}
    with torch.no_grad():
        read, heard = model(input_ids=words, **later), model(input_features=sounds, **later)
        said = model.t2u_model(inputs_embeds=model.shared(words[:, :5]), **units)
        if config.model_type == "seamless_m4t":
            spoken = [said.logits]
        else:  # how long units last is rounded, and shown as it is
            spoken = [said.last_hidden_state, model.t2u_model.model.decoder.duration_predictor(model.shared(words))]
    return torch.cat([x.double().flatten() for x in (read.logits, heard.logits, *spoken)])


# name -> (constructor, largest relative change of outputs that rounding explains). T5's norms are computed in
# float32.
READING: dict[str, tuple[Callable[[], Any], float]] = {
    "seamless_m4t": (lambda: tf.SeamlessM4TModel(tf.SeamlessM4TConfig(**TRANSLATING)), 1e-9),
    "seamless_m4t-heard": (lambda: tf.SeamlessM4TForSpeechToText(tf.SeamlessM4TConfig(**TRANSLATING)), 1e-9),
    "seamless_m4t_v2": (lambda: tf.SeamlessM4Tv2Model(tf.SeamlessM4Tv2Config(**TRANSLATING_2)), 1e-9),
    "hiera": (lambda: tf.HieraForImageClassification(tf.HieraConfig(**POOLED)), 1e-9),
    "udop": (lambda: tf.UdopForConditionalGeneration(tf.UdopConfig(**PAGE)), 1e-5),
    "pix2struct": (lambda: tf.Pix2StructForConditionalGeneration(tf.Pix2StructConfig(**SCREEN)), 1e-5),
}


def _placed_patches(_: Any, rng: torch.Generator) -> Inputs:
    """Patches, each behind its row and its column, and the words before."""
    places = torch.randint(1, 9, (3, 7, 2), generator=rng)
    return {
        "flattened_patches": torch.cat([places.double(), drawn_numbers(rng, 3, 7, 12)], -1), "decoder_input_ids": torch.randint(1, 60, (3, 5), generator=rng),
    }  # fmt: skip


def _images(_: Any, rng: torch.Generator) -> Inputs:
    """Images."""
    return {"pixel_values": drawn_numbers(rng, 3, 3, 16, 16)}


def _on_pages(_: Any, rng: torch.Generator) -> Inputs:
    """Words, where they stand on a page, the page itself, and the words before."""
    corners = torch.rand((3, 9, 2), generator=rng, dtype=torch.float64) / 2
    return {
        "input_ids": torch.randint(1, 60, (3, 9), generator=rng), "bbox": torch.cat([corners, corners + 0.3], -1), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8),
        "attention_mask": torch.ones((3, 9), dtype=torch.long), "decoder_input_ids": torch.randint(1, 60, (3, 5), generator=rng),
    }  # fmt: skip


def _spoken(config: Any, rng: torch.Generator) -> Inputs:
    """Sounds, and the words before; for the whole texts as well."""
    found = {
        "input_features": drawn_numbers(rng, 3, 12, 10), "decoder_input_ids": torch.randint(5, 60, (3, 7), generator=rng),
    }  # fmt: skip
    words = torch.randint(5, 60, (3, 11), generator=rng)
    return {**found, "input_ids": words} if config.architectures[0].endswith("Model") else found


READING_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "hiera": _images,
    "udop": _on_pages,
    "pix2struct": _placed_patches,
    **dict.fromkeys(["seamless_m4t", "seamless_m4t_v2"], _spoken),
}
"""By model type: how its inputs are made."""
