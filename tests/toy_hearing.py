"""Constructors of tiny models that write what they hear, or see and hear, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_draws import drawn_numbers, drawn_words
from toy_hybrids import NEMOTRON_H
from toy_languages import KNOWN
from toy_seeing import GRID, IMAGE, SECTIONS, TEXT

Inputs = dict[str, torch.Tensor]
HEARD = 62
"""The id of the token that stands for a piece of sound."""
FAST: dict[str, Any] = {
    "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 36, "conv_kernel_size": 3, "subsampling_conv_channels": 6,
    "num_mel_bins": 16,
}  # fmt: skip
TRANSDUCED: dict[str, Any] = {
    "encoder_config": FAST,
    "vocab_size": 31,
    "decoder_hidden_size": 16,
    "blank_token_id": 30,
    "pad_token_id": 2,
}
RADIO: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "mlp_ratio": 0.8, "patch_size": 2, "image_size": 8, "max_img_size": 8, "num_cls_tokens": 2,
    "num_registers": 1, "summary_idxs": [0, 1], "video_temporal_patch_size": 2,
}  # fmt: skip
THINKING: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS, "num_hidden_layers": 2}, "image_token_id": IMAGE, "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66,
    "vision_config": {
        **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    },
}  # fmt: skip
OMNI: dict[str, Any] = {
    "text_config": {**NEMOTRON_H, "model_type": "nemotron_h"}, "vision_config": {**RADIO, "model_type": "radio"}, "audio_config": {**FAST, "projection_hidden_size": 22, "projection_bias": True},
    "projector_hidden_size": 28, "vision_hidden_size": 60, "image_token_id": IMAGE, "video_token_id": 64, "audio_token_id": HEARD,
}  # fmt: skip


def _ctc() -> Any:
    return tf.ParakeetForCTC(tf.ParakeetCTCConfig(encoder_config=FAST, vocab_size=31, pad_token_id=30))


def _rnnt() -> Any:
    plain = {**FAST, "attention_bias": False, "convolution_bias": False, "hidden_act": "relu"}
    return tf.ParakeetForRNNT(
        tf.ParakeetRNNTConfig(**{**TRANSDUCED, "encoder_config": plain, "num_decoder_layers": 1})
    )


def _omni(ahead: int = 0, **changes: Any) -> Any:
    text, eye = {**OMNI["text_config"], "num_nextn_predict_layers": ahead}, {**OMNI["vision_config"], **changes}
    config = tf.NemotronH_Omni_Reasoning_V3_Config(**{**OMNI, "text_config": text, "vision_config": eye})
    return tf.NemotronH_Omni_Reasoning_V3(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
HEARING: dict[str, tuple[Callable[[], Any], float]] = {
    "parakeet_ctc": (_ctc, 1e-9),
    "parakeet_tdt": (lambda: tf.ParakeetForTDT(tf.ParakeetTDTConfig(**TRANSDUCED)), 1e-9),
    "parakeet_rnnt": (_rnnt, 1e-9),
    "cosmos3_omni": (lambda: tf.Cosmos3OmniForConditionalGeneration(tf.Cosmos3OmniConfig(**THINKING)), 1e-5),
    "nemotron_h_omni": (_omni, 1e-5),
    "nemotron_h_omni-gated": (lambda: _omni(1, use_swiglu_ffn=True), 1e-5),
}


def _spectra(config: Any, rng: torch.Generator) -> Inputs:
    """Spectrograms, of which one is short, and for transducers the words before."""
    mask = torch.ones((3, 40), dtype=torch.bool)
    mask[1, 24:] = False
    words = (
        {"decoder_input_ids": torch.randint(0, 30, (3, 4), generator=rng)}
        if hasattr(config, "decoder_hidden_size")
        else {}
    )
    return {"input_features": drawn_numbers(rng, 3, 40, 16), "attention_mask": mask, **words}


def _seen_and_heard(_: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image and a sound each."""
    ids = drawn_words(rng, 4)
    ids[:, 6:8] = HEARD
    return {
        "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, 12), "image_grid_hw": torch.tensor([[4, 4]] * 3),
        "input_features": drawn_numbers(rng, 3, 16, 16),
    }  # fmt: skip


HEARING_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    **dict.fromkeys(["parakeet_ctc", "parakeet_tdt", "parakeet_rnnt"], _spectra),
    "nemotron_h_omni": _seen_and_heard,
}
"""By model type: how its inputs are made."""

CONVERTED_HEARING = [name for name in HEARING if "omni" in name and "cosmos" not in name]
"""Those that transformers stores otherwise than it computes with them."""
