"""Series of numbers and of acts."""

from __future__ import annotations

from typing import Any

import torch

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_models import made

ACTS = {
    "state_dim": 5, "act_dim": 3, "hidden_size": 48, "max_ep_len": 20, "n_layer": 2, "n_head": 6, "n_inner": 40, "n_positions": 40, "vocab_size": 1,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
PATCHED = {
    "patch_length": 4, "context_length": 16, "horizon_length": 6, "num_hidden_layers": 2, "hidden_size": 36, "intermediate_size": 40, "head_dim": 9,
    "num_attention_heads": 4,
}  # fmt: skip
SERIES = {
    "prediction_length": 4, "context_length": 6, "lags_sequence": [1, 2], "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 24, "num_time_features": 2,
    "num_static_categorical_features": 1, "cardinality": [3], "embedding_dimension": [5],
}  # fmt: skip


def _acts(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    sizes = {"states": config.state_dim, "actions": config.act_dim, "returns_to_go": 1}
    found = {name: torch.randn((3, 6, size), generator=rng, dtype=torch.float64) for name, size in sizes.items()}
    return {**found, "timesteps": torch.arange(6).repeat(3, 1)}


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


MORE_TOYS: dict[str, Toy] = {
    "decision_transformer": (made("DecisionTransformer", "Model", **ACTS), 1e-9),
    "timesfm": (made("TimesFm", "ModelForPrediction", **PATCHED), 1e-5),
    "timesfm-placed": (made("TimesFm", "ModelForPrediction", **PATCHED, use_positional_embedding=True), 1e-5),
    "time_series_transformer": (
        made("TimeSeriesTransformer", "ForPrediction", **SERIES, activation_function="relu"),
        1e-9,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "DecisionTransformer": (ACTS, ["Model"]),
    "TimesFm": (PATCHED, ["Model", "ModelForPrediction"]),
    "TimeSeriesTransformer": (SERIES, ["Model", "ForPrediction"]),
}

STREAMS: dict[str, Streams] = {
    "timesfm": {"res": "OFixingOnes"},
    "timesfm-placed": {},
    "time_series_transformer": {"eres": "Perm", "res": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    "decision_transformer": _acts,
    "timesfm": _series,
    "time_series_transformer": _past_and_future,
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "decision_transformer": ("state_preds", "action_preds", "return_preds"),
    "timesfm": ("full_predictions",),
    "time_series_transformer": ("loss",),
}

MUTANTS = [
    mutant(
        "decision_transformer", "states past the stream", "res", "embed_state.bias res => embed_state.bias rows"
    ),
    mutant(
        "decision_transformer",
        "actions past the last norm",
        "nf",
        "predict_action.0.weight action (res nf)' => predict_action.0.weight action res'",
    ),
    mutant(
        "timesfm",
        "any matrix under gains per coordinate",
        "t",
        "space t as qk: Scale[l, h, c] => space t as qk: GL[l, h]",
        "(h c t) => (h t)",
        "(h c t') => (h t')",
        "size c = head_dim => size t = head_dim",
    ),
    mutant(
        "timesfm",
        "the softened gain takes the factor",
        "t",
        "self_attn.scaling c => self_attn.scaling (c t)",
        "space t as qk: Scale[l, h, c] => space t as qk: PositiveScale[l, c]",
        "k_proj.weight (h c t') => k_proj.weight (h c)",
        "q_proj.weight (h c t) => q_proj.weight (h c t')",
        "k_proj.bias (h c t') => k_proj.bias (h c)",
        "q_proj.bias (h c t) => q_proj.bias (h c t')",
    ),
    mutant(
        "timesfm",
        "patches past the stream",
        "res",
        "input_ff_layer.residual_layer.bias res => input_ff_layer.residual_layer.bias rows",
    ),
    mutant(
        "timesfm-placed",
        "the stream of sinusoids permuted",
        "res",
        "residual res: Perm folded OFixingOnes if not use_positional_embedding => residual res: Perm",
    ),
    mutant("time_series_transformer", "queries across not dual", "xqk", "(xh xqk') => (xh xqk)"),
    mutant(
        "time_series_transformer",
        "stored sinusoids forgotten",
        "eres",
        "encoder.embed_positions.weight pos eres => encoder.embed_positions.weight pos other",
    ),
]
