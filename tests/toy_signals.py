"""Constructors of tiny models of films, tables, sounds and series of numbers, their inputs and what is compared of
their outputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_towers import WORDS

FILM = {
    "patch_size": 4, "crop_size": 16, "frames_per_clip": 4, "hidden_size": 84, "num_attention_heads": 3, "num_hidden_layers": 2, "mlp_ratio": 2,
    "pred_hidden_size": 40, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 2, "pred_mlp_ratio": 2, "num_pooler_layers": 2,
}  # fmt: skip
ACTS = {
    "state_dim": 5, "act_dim": 3, "hidden_size": 48, "max_ep_len": 20, "n_layer": 2, "n_head": 6, "n_inner": 40, "n_positions": 40, "vocab_size": 1,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TABLE = {
    **WORDS, "num_aggregation_labels": 3, "type_vocab_sizes": [3, 8, 8, 2, 8, 8, 10], "max_num_rows": 4, "max_num_columns": 4, "select_one_column": True,
}  # fmt: skip

SPECTRA = {
    "hidden_size": 96, "patch_size": 4, "patch_stride": [4, 4], "num_mel_bins": 32, "spec_size": 64, "patch_embeds_hidden_size": 12,
    "depths": [2, 1, 1, 1], "num_attention_heads": [3, 4, 6, 8], "window_size": 2, "mlp_ratio": 1.5, "enable_fusion": True,
    "patch_embed_input_channels": 1, "num_hidden_layers": 4, "aff_block_r": 2,
}  # fmt: skip
HEARD = {"text_config": WORDS, "audio_config": SPECTRA, "projection_dim": 20}
SHORT = {**HEARD, "audio_config": {**SPECTRA, "enable_fusion": False}}

PATCHED = {
    "patch_length": 4, "context_length": 16, "horizon_length": 6, "num_hidden_layers": 2, "hidden_size": 36, "intermediate_size": 40, "head_dim": 9,
    "num_attention_heads": 4,
}  # fmt: skip
SERIES = {
    "prediction_length": 4, "context_length": 6, "lags_sequence": [1, 2], "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 24, "num_time_features": 2,
    "num_static_categorical_features": 1, "cardinality": [3], "embedding_dimension": [5],
}  # fmt: skip


def _made(kind: str, head: str, **config: Any) -> Callable[[], Any]:
    return lambda: getattr(tf, f"{kind}{head}")(getattr(tf, f"{kind}Config")(**config))


# name -> (constructor, largest relative change of outputs that rounding explains). TAPAS takes its logits in
# float32.
SIGNALS: dict[str, tuple[Callable[[], Any], float]] = {
    "vjepa2": (_made("VJEPA2", "Model", **FILM), 1e-9),
    "vjepa2-labels": (_made("VJEPA2", "ForVideoClassification", **FILM, hidden_act="relu"), 1e-9),
    "decision_transformer": (_made("DecisionTransformer", "Model", **ACTS), 1e-9),
    "tapas": (_made("Tapas", "ForSequenceClassification", **TABLE), 1e-9),
    "clap": (_made("Clap", "Model", **HEARD), 1e-5),
    "clap-short": (_made("Clap", "Model", **SHORT), 1e-5),
    "timesfm": (_made("TimesFm", "ModelForPrediction", **PATCHED), 1e-5),
    "timesfm-placed": (_made("TimesFm", "ModelForPrediction", **PATCHED, use_positional_embedding=True), 1e-5),
    "time_series_transformer": (
        _made("TimeSeriesTransformer", "ForPrediction", **SERIES, activation_function="relu"),
        1e-9,
    ),
    "tapas-cells": (_made("Tapas", "ForQuestionAnswering", **TABLE), 1e-5),
}


def _film(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    shape = (2, config.frames_per_clip, 3, config.crop_size, config.crop_size)
    return {"pixel_values_videos": torch.randn(shape, generator=rng, dtype=torch.float64)}


def _acts(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    sizes = {"states": config.state_dim, "actions": config.act_dim, "returns_to_go": 1}
    found = {name: torch.randn((3, 6, size), generator=rng, dtype=torch.float64) for name, size in sizes.items()}
    return {**found, "timesteps": torch.arange(6).repeat(3, 1)}


def _table(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Words, of which the last eight stand in the cells of a table."""
    kinds = torch.stack([torch.randint(0, size, (3, 11), generator=rng) for size in config.type_vocab_sizes], -1)
    kinds[..., 0], kinds[:, :3, :3] = 1, 0
    kinds[:, 3:, 1], kinds[:, 3:, 2] = torch.arange(8) % 4 + 1, torch.arange(8) // 4 + 1
    return {"input_ids": torch.randint(1, 60, (3, 11), generator=rng), "token_type_ids": kinds}


def _sounds(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and spectrograms: long ones as a whole and in three pieces."""
    pieces = 4 if config.audio_config.enable_fusion else 1
    return {
        "input_ids": torch.randint(4, 60, (3, 9), generator=rng),
        "input_features": torch.randn((3, pieces, 128, 32), generator=rng, dtype=torch.float64),
        "is_longer": torch.tensor([[True], [False], [True]]),
    }


def _series(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return {"past_values": torch.randn((3, 14), generator=rng, dtype=torch.float64).cumsum(1)}


def _past_and_future(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    values = torch.randn((3, past + future), generator=rng, dtype=torch.float64)
    features = torch.randn((3, past + future, config.num_time_features), generator=rng, dtype=torch.float64)
    return {
        "past_values": values[:, :past], "future_values": values[:, past:], "past_time_features": features[:, :past],
        "future_time_features": features[:, past:], "past_observed_mask": torch.ones((3, past), dtype=torch.float64),
        "static_categorical_features": torch.tensor([[0], [1], [2]]),
    }  # fmt: skip


SIGNAL_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    "vjepa2": _film,
    "decision_transformer": _acts,
    "tapas": _table,
    "clap": _sounds,
    "timesfm": _series,
    "time_series_transformer": _past_and_future,
}
"""Inputs by ``model_type`` (see `toys.inputs`)."""

SIGNAL_OUTPUTS: dict[str, tuple[str, ...]] = {
    "vjepa2": ("logits", "last_hidden_state", "predictor_output.last_hidden_state"),
    "decision_transformer": ("state_preds", "action_preds", "return_preds"),
    "tapas": ("logits", "logits_aggregation"),
    "clap": ("logits_per_audio", "audio_embeds", "text_embeds"),
    "timesfm": ("full_predictions",),
    "time_series_transformer": ("loss",),
}
"""The outputs that are compared, by ``model_type`` (see `toy_pictures.seen_outputs`)."""
