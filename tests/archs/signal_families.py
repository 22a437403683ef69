"""Families of `toy_signals` whose saved names are tried, the largest groups of their streams, and plausible wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_signals import ACTS, FILM, TABLE

SIGNAL_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "VJEPA2": (FILM, ["Model", "ForVideoClassification"]),
    "DecisionTransformer": (ACTS, ["Model"]),
    "Tapas": (TABLE, ["Model", "ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification"]),
}
SIGNAL_STREAMS: dict[str, dict[str, str]] = {
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
]  # fmt: skip
