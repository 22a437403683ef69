"""Families of `toy_speech` whose saved names are tried, their streams, what their toys cannot move, and plausible
wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_speech import GRANITE_SPEECH, OMNI, TALKER

SPEECH_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Qwen2_5Omni": (OMNI, ["ForConditionalGeneration"]),
    "Qwen2_5OmniTalker": (TALKER, ["ForConditionalGeneration"]),
    "GraniteSpeech": (GRANITE_SPEECH, ["Model", "ForConditionalGeneration"]),
}
SPEECH_STREAMS: dict[str, dict[str, str]] = {
    "qwen2_5_omni": {"res": "SignedPerm", "vision_res": "O", "talk_res": "O"},
    "granite_speech": {"res": "O", "cres": "Perm", "qres": "Perm"},
}
"""The largest groups of their streams (see `test_streams`)."""
SPEECH_IDLE = {("granite_speech", "vb"), ("qwen2_5_omni", "vb"), ("qwen2_5_omni", "talk_vb")}
"""Shifts of biases that a toy has not."""
SPEECH_MUTANTS = [
    mutant("qwen2_5_omni", "codes in other coordinates", "res", "codes res => codes other"),
    mutant("qwen2_5_omni", "the talker reads other coordinates", "res", "talk_res res' => talk_res other"),
    mutant("qwen2_5_omni", "the thinker's last gain folded past the talker", "nf", "of qwen2_5_omni_thinker without nf => of qwen2_5_omni_thinker"),
    mutant("qwen2_5_omni", "the talker's key not dual", "talk_c", "(kv c' pair) => (kv c pair)", part="qwen2_5_omni_talker"),
    mutant("granite_speech", "a matrix per head under one table", "cqk", "cqk as qk: GL[l] => cqk as qk: GL[l, ch]", "place cqk' => place places"),
    mutant("granite_speech", "values before keys", "cov", "[ch cqk' | ch cov] => [ch cov | ch cqk']"),
    mutant("granite_speech", "gates and values mistaken", "cu", "[channel cu | channel] => [channel | channel cu]"),
    mutant("granite_speech", "what is heard in the middle forgotten", "cres", "encoder.out_mid.weight cres tokens => encoder.out_mid.weight rows tokens"),
    mutant("granite_speech", "queries read other coordinates", "cres", "(qxh qxov) cres' => (qxh qxov) other"),
    mutant("granite_speech", "the map writes other coordinates", "res", "projector.linear.bias res => projector.linear.bias rows"),
]  # fmt: skip
