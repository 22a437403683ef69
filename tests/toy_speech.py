"""Constructors of tiny models that hear and speak, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_languages import KNOWN
from toy_seeing import IMAGE, TEXT
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

# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
SPOKEN: dict[str, tuple[Callable[[], Any], float]] = {
    "granite_speech": (
        lambda: tf.GraniteSpeechForConditionalGeneration(tf.GraniteSpeechConfig(**GRANITE_SPEECH)),
        1e-5,
    ),
}


def _words(rng: torch.Generator, pieces: int) -> torch.Tensor:
    """Three texts; behind the first token stand so many that stand for what is heard."""
    ids = torch.randint(4, 60, (3, pieces + 9), generator=rng)
    ids[:, 1 : 1 + pieces] = IMAGE
    return ids


def _in_windows(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Twelve moments of sound in three windows, for each of which two tokens stand."""
    ids = _words(rng, 6)
    return {"input_ids": ids, "input_features": torch.randn((3, 12, 7), generator=rng, dtype=torch.float64)}


SPEECH_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    "granite_speech": _in_windows
}
"""Inputs by ``model_type``."""
