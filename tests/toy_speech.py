"""Constructors of tiny models that hear and speak, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from toy_draws import drawn_words
from toy_languages import KNOWN
from toy_seeing import GRID, IMAGE, SECTIONS, TEXT
from toy_sense_inputs import seen_and_heard
from toy_towers import WORDS

GRANITE: dict[str, Any] = {
    **TEXT,
    **KNOWN,
    "model_type": "granite",
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
}
CONFORMER: dict[str, Any] = {
    "input_dim": 7, "num_layers": 2, "hidden_dim": 40, "feedforward_mult": 2, "num_heads": 4, "dim_head": 9, "output_dim": 11, "context_size": 5,
    "max_pos_emb": 6, "conv_kernel_size": 3, "conv_expansion_factor": 2,
}  # fmt: skip
QUERIES: dict[str, Any] = {
    **WORDS, "model_type": "blip_2_qformer", "hidden_size": 36, "num_attention_heads": 4, "encoder_hidden_size": 40, "cross_attention_frequency": 1,
}  # fmt: skip
GRANITE_SPEECH: dict[str, Any] = {
    "text_config": GRANITE, "encoder_config": CONFORMER, "projector_config": QUERIES, "audio_token_index": IMAGE, "downsample_rate": 2, "window_size": 4,
    "has_lora_adapter": False, "tie_word_embeddings": False,
}  # fmt: skip

WAVES: dict[str, Any] = {
    "dit_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "emb_dim": 8, "num_embeds": 11, "mel_dim": 6, "enc_emb_dim": 5,
        "enc_dim": 5, "enc_channels": [8, 8, 8, 8, 24], "enc_attention_channels": 4, "enc_se_channels": 4, "enc_res2net_scale": 2,
    },
    "bigvgan_config": {
        "mel_dim": 6, "upsample_initial_channel": 16, "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]], "upsample_rates": [2],
        "upsample_kernel_sizes": [4],
    },
}  # fmt: skip
THINKER: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS}, "image_token_index": IMAGE, "video_token_index": 64, "audio_token_index": 62,
    "vision_start_token_id": 65, "audio_start_token_id": 66, "tie_word_embeddings": False,
    "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8, "fullatt_block_indexes": [1]},
    "audio_config": {
        "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "max_source_positions": 8, "n_window": 4,
        "output_dim": 48,
    },
}  # fmt: skip
TALKER: dict[str, Any] = {
    **TEXT, "vocab_size": 31, "embedding_size": 48, "hidden_size": 40, "num_attention_heads": 4, "intermediate_size": 36, "rope_parameters": SECTIONS,
    "num_hidden_layers": 2,
}  # fmt: skip
OMNI: dict[str, Any] = {"thinker_config": THINKER, "talker_config": TALKER, "token2wav_config": WAVES}


def speaks(folder: Path, config: Any, dtype: torch.dtype, given: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """What a model that thinks and talks writes and says: the whole has no forward pass of its own, and asks for a
    file of voices. None of others."""
    if config.model_type != "qwen2_5_omni":
        return None
    torch.save({}, folder / "spk_dict.pt")
    model = tf.Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
    (folder / "spk_dict.pt").unlink()
    with torch.no_grad():
        thought = model.thinker(**given, output_hidden_states=True)
        codes = model.talker.get_input_embeddings()(given["input_ids"] % 31)
        said = model.talker(inputs_embeds=thought.hidden_states[0] + thought.hidden_states[-1] + codes)
    return torch.cat([thought.logits.double().flatten(), said.logits.double().flatten()])


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
SPOKEN: dict[str, tuple[Callable[[], Any], float]] = {
    "qwen2_5_omni": (lambda: tf.Qwen2_5OmniForConditionalGeneration(tf.Qwen2_5OmniConfig(**OMNI)), 1e-5),
    "granite_speech": (
        lambda: tf.GraniteSpeechForConditionalGeneration(tf.GraniteSpeechConfig(**GRANITE_SPEECH)),
        1e-5,
    ),
}


def _in_windows(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Twelve moments of sound in three windows, for each of which two tokens stand."""
    ids = drawn_words(rng, 6)
    return {"input_ids": ids, "input_features": torch.randn((3, 12, 7), generator=rng, dtype=torch.float64)}


SPEECH_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    "granite_speech": _in_windows,
    "qwen2_5_omni": seen_and_heard,
}
"""Inputs by ``model_type``."""
