"""Families of `toy_reading` whose saved names are tried, their streams, what their toys cannot move, and plausible
wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_reading import PAGE, POOLED, SCREEN, TRANSLATING, TRANSLATING_2

WAYS = ["Model", "ForTextToText", "ForSpeechToText", "ForTextToSpeech", "ForSpeechToSpeech"]
READING_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Pix2Struct": (SCREEN, ["ForConditionalGeneration"]),
    "Hiera": (POOLED, ["Model", "ForImageClassification", "Backbone"]),
    "Udop": (PAGE, ["Model", "ForConditionalGeneration", "EncoderModel"]),
    "SeamlessM4T": (TRANSLATING, WAYS),
    "SeamlessM4Tv2": (TRANSLATING_2, WAYS),
}
READING_STREAMS: dict[str, dict[str, str]] = {
    "hiera": {"res0": "OFixingOnes", **{f"res{s}": "Perm" for s in (1, 2, 3)}},
    "udop": {"res": "SignedPerm"},
    "pix2struct": {"vres": "O", "res": "O"},
    **{name: {"sres": "Perm"} for name in ("seamless_m4t", "seamless_m4t_v2")},
    "seamless_m4t-heard": {"sres": "Perm", "mem": "Perm"},
}
"""The largest groups of their streams (see `test_streams`)."""
READING_IDLE: set[tuple[str, str]] = set()
"""What a toy declares but cannot move (see `test_law`)."""
READING_MUTANTS = [
    mutant("hiera", "negative factors in front of the largest", "qs1", "qs1 as scale: PositiveScale => qs1 as scale: Scale"),
    mutant("hiera", "a stage rotated behind the largest", "res1", "residual res1: Perm => residual res1: O", "diag(res1 n11) => (res1 n11)", "diag(res1 n12) => (res1 n12)", "diag(res1 m1) => (res1 m1)"),
    mutant("hiera", "a stage's first map past the gain in front of it", "m0", "proj.weight res1 (res0 m0)' => proj.weight res1 res0'"),
    mutant("udop", "distances on the page past their heads", "eh", "biases.{b}.relative_attention_bias.weight bucket eh => biases.{b}.relative_attention_bias.weight bucket heads"),
    mutant("udop", "places in other coordinates", "res", "y_position_embeddings.weight pos res => y_position_embeddings.weight pos other"),
    mutant("seamless_m4t", "the adapter in coordinates of its own where texts are read as well", "mem", "residual mem: Perm if alone => residual mem: Perm if hears", "inner_layer_norm.weight mem if not alone => inner_layer_norm.weight diag(mem) if not alone"),
    mutant("seamless_m4t", "the factor behind the convolution past what was counted", "cs", "running_mean (channel cs) => running_mean channel"),
    mutant("seamless_m4t", "what is gated scaled with its gate", "au", "self_attn_conv.bias [am au | am] => self_attn_conv.bias [am | am]"),
    mutant("seamless_m4t", "places that heads do not take along", "sh", "linear_pos.weight (sh sqk') wave => linear_pos.weight rows wave"),
    mutant("seamless_m4t-heard", "sounds past the gain that ends the adapter", "nm", "cross_attention.v_proj.weight (xh xov) (mem nm)' => cross_attention.v_proj.weight (xh xov) mem'"),
    mutant("seamless_m4t_v2", "a matrix per head under one table", "sqk", "space sqk as qk: GL[l] if hears and later => space sqk as qk: GL[l, sh] if hears and later", "place sqk' => place places"),
    mutant("seamless_m4t_v2", "how long units last past the first norm's gain", "ls1", "lasts2 (lasts1 ls1)' width => lasts2 lasts1' width"),
    mutant("seamless_m4t_v2", "the bias of a convolution over units forgotten", "tc", "conv1.bias (tc tcu) => conv1.bias rows"),
    mutant("pix2struct", "heads of a layer change places alone", "dh", "space dh as h: Perm => space dh as h: Perm[l]", "bucket dh => bucket heads"),
    mutant("pix2struct", "the decoder reads past the tower's last gain", "enf", "(xh xov) (vres enf)' => (xh xov) vres'"),
    mutant("pix2struct", "columns in other coordinates", "vres", "columns vres => columns other"),
    mutant("pix2struct", "gates scaled with their values", "du", "wi_0.weight dff => wi_0.weight (dff du)"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""
