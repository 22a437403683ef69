"""Families of `toy_speech` whose saved names are tried, their streams, what their toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_speech import GRANITE_SPEECH

SPEECH_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "GraniteSpeech": (GRANITE_SPEECH, ["Model", "ForConditionalGeneration"]),
}
SPEECH_STREAMS: dict[str, dict[str, str]] = {
    "granite_speech": {"res": "O", "cres": "Perm", "qres": "Perm"},
}
"""The largest groups of their streams (see `test_streams`)."""
SPEECH_IDLE = {("granite_speech", "vb")}
"""Shifts of biases that a toy has not."""
SPEECH_MUTANTS = [
    mutant("granite_speech", "a matrix per head under one table", "cqk", "cqk as qk: GL[l] => cqk as qk: GL[l, ch]", "place cqk' => place places"),
    mutant("granite_speech", "values before keys", "cov", "[ch cqk' | ch cov] => [ch cov | ch cqk']"),
    mutant("granite_speech", "gates and values mistaken", "cu", "[channel cu | channel] => [channel | channel cu]"),
    mutant("granite_speech", "what is heard in the middle forgotten", "cres", "encoder.out_mid.weight cres tokens => encoder.out_mid.weight rows tokens"),
    mutant("granite_speech", "queries read other coordinates", "cres", "(qxh qxov) cres' => (qxh qxov) other"),
    mutant("granite_speech", "the map writes other coordinates", "res", "projector.linear.bias res => projector.linear.bias rows"),
]  # fmt: skip
