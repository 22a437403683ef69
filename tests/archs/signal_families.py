"""Families of `toy_signals` whose saved names are tried, the largest groups of their streams, and plausible wrong
specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_signals import ACTS, FILM, HEARD, PATCHED, SERIES, SPECTRA, TABLE, WORDS

SIGNAL_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "VJEPA2": (FILM, ["Model", "ForVideoClassification"]),
    "DecisionTransformer": (ACTS, ["Model"]),
    "Tapas": (TABLE, ["Model", "ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification"]),
    "Clap": (HEARD, ["Model"]),
    "ClapText": (WORDS, ["Model"]),
    "ClapAudio": (SPECTRA, ["Model"]),
    "TimesFm": (PATCHED, ["Model", "ModelForPrediction"]),
    "TimeSeriesTransformer": (SERIES, ["Model", "ForPrediction"]),
}
SIGNAL_STREAMS: dict[str, dict[str, str]] = {
    "timesfm": {"res": "OFixingOnes"},
    "timesfm-placed": {},
    "time_series_transformer": {"eres": "Perm", "res": "Perm"},
    **{
        name: {"text_res": "Perm", **{f"audio_res{s}": "Perm" for s in range(4)}} for name in ("clap", "clap-short")
    },
    **{name: {"pres": "OFixingOnes"} for name in ("vjepa2", "vjepa2-labels")},
}
"""The largest groups of their streams (see `test_streams`)."""
SIGNAL_IDLE: set[tuple[str, str]] = set()
"""What a toy declares but cannot move (see `test_law`)."""
SIGNAL_MUTANTS = [
    mutant("vjepa2", "a rotation per pair", "tw", "space tw as qk: GL[l, h, axis, pr] => space tw as qk: Complex[l, h, axis, pr]", "size tw = 2 - (hidden_size // num_attention_heads - hidden_size // num_attention_heads % 6) // 3 // 2 % 2 => size tw = 2", "axis tw pr 2 => axis pr 2 tw", "axis tw' pr 2 => axis pr 2 tw'"),
    mutant("vjepa2", "neighbours for twins", "tw", "axis tw pr 2 => axis pr tw 2", "axis tw' pr 2 => axis pr tw' 2"),
    mutant("vjepa2", "twins of unlike frequencies", "ptw", "size ptw = 2 - (pred_hidden_size // pred_num_attention_heads - pred_hidden_size // pred_num_attention_heads % 6) // 3 // 2 % 2 => size ptw = 3"),
    mutant("vjepa2-labels", "heads without a place", "xh", "space xqk as qk: GL[xh] => space xh as h: Perm if \"classifier.weight\" in tensors\nspace xqk as qk: GL[xh]"),
    mutant("decision_transformer", "states past the stream", "res", "embed_state.bias res => embed_state.bias rows"),
    mutant("decision_transformer", "actions past the last norm", "nf", "predict_action.0.weight action (res nf)' => predict_action.0.weight action res'"),
    mutant("tapas", "places in the table forgotten", "res", "token_type_embeddings_{t}.weight types res => token_type_embeddings_{t}.weight types other"),
    mutant("tapas", "labels past the stream", "res", "? classifier.weight labels res' => ? classifier.weight labels rows"),
    mutant("clap", "texts past their tower", "text_res", "text_projection.linear1.weight (tp tu) text_res' => text_projection.linear1.weight (tp tu) rows", "size tp = => size rows = text_config.hidden_size\nsize tp ="),
    mutant("clap", "sounds past the last norm", "audio_nf", "(ap au) (audio_res3 audio_nf)' => (ap au) audio_res3'"),
    mutant("clap", "gates in coordinates of their own", "audio_res0", "local_att.3.weight res0 (fl fv)' 1 1 => local_att.3.weight rows (fl fv)' 1 1", "global_att.4.weight res0 => global_att.4.weight rows", part="clap_audio_model"),
    mutant("clap", "long sounds in coordinates of their own", "audio_res0", "mel_conv2d.weight res0 => mel_conv2d.weight rows", part="clap_audio_model"),
    mutant("clap-short", "negative factors through ReLU", "au", "space au as scale: PositiveScale => space au as scale: Scale"),
    mutant("timesfm", "any matrix under gains per coordinate", "t", "space t as qk: Scale[l, h, c] => space t as qk: GL[l, h]", "(h c t) => (h t)", "(h c t') => (h t')", "size c = head_dim => size t = head_dim"),
    mutant("timesfm", "the softened gain takes the factor", "t", "self_attn.scaling c => self_attn.scaling (c t)", "space t as qk: Scale[l, h, c] => space t as qk: PositiveScale[l, c]", "k_proj.weight (h c t') => k_proj.weight (h c)", "q_proj.weight (h c t) => q_proj.weight (h c t')", "k_proj.bias (h c t') => k_proj.bias (h c)", "q_proj.bias (h c t) => q_proj.bias (h c t')"),
    mutant("timesfm", "patches past the stream", "res", "input_ff_layer.residual_layer.bias res => input_ff_layer.residual_layer.bias rows"),
    mutant("timesfm-placed", "the stream of sinusoids permuted", "res", "residual res: Perm folded OFixingOnes if not use_positional_embedding => residual res: Perm"),
    mutant("time_series_transformer", "queries across not dual", "xqk", "(xh xqk') => (xh xqk)"),
    mutant("time_series_transformer", "stored sinusoids forgotten", "eres", "encoder.embed_positions.weight pos eres => encoder.embed_positions.weight pos other"),
]  # fmt: skip
