"""Families of `toy_hearing` whose saved names are tried, their streams, what their toys cannot move, and plausible
wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_hearing import FAST, OMNI, RADIO, THINKING, TRANSDUCED

HEARING_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ParakeetEncoder": (FAST, []),
    "ParakeetCTC": ({"encoder_config": FAST, "vocab_size": 31, "pad_token_id": 30}, []),
    "ParakeetTDT": (TRANSDUCED, []),
    "ParakeetRNNT": (TRANSDUCED, []),
    "Radio": (RADIO, ["Model"]),
    "Cosmos3Omni": (THINKING, ["Model", "ForConditionalGeneration"]),
    "NemotronH_Omni_Reasoning_V3_": (OMNI, []),
}
HEARING_STREAMS: dict[str, dict[str, str]] = {
    "cosmos3_omni": {"res": "O", "vres": "Perm"},
    "nemotron_h_omni": {"res": "O", "vision_res": "OFixingOnes", "sound_res": "Perm"},
    "nemotron_h_omni-gated": {"res": "O", "vision_res": "Perm", "sound_res": "Perm"},
}
"""The largest groups of their streams (see `test_streams`)."""
HEARING_IDLE = {
    ("cosmos3_omni", "vb"),
    *(("parakeet_rnnt", name) for name in ("kb", "vb")),
    *((toy, name) for toy in ("nemotron_h_omni", "nemotron_h_omni-gated") for name in ("sound_kb", "sound_vb")),
}
"""Shifts of biases that a toy has not."""
FAST_PART = "parakeet_encoder"
HEARING_MUTANTS = [
    mutant("parakeet_ctc", "the last gain past what reads it", "nf", "ctc_head.weight vocab (res nf)' 1 => ctc_head.weight vocab res' 1"),
    mutant("parakeet_tdt", "cells of one gate alone", "top", "bias_hh_l1 [top | top | top | top] => bias_hh_l1 [top | top | top | gate]", "size joint => size gate = emb\nsize joint"),
    mutant("parakeet_tdt", "words that the gates read in other coordinates", "emb", "[cell | cell | cell | cell] emb' if deep => [cell | cell | cell | cell] other if deep"),
    mutant("parakeet_rnnt", "negative factors through ReLU", "ju", "PositiveScale[joint] => Scale[joint]", "returns joint ju res => returns res"),
    mutant("parakeet_ctc", "values for gates", "cu", "[channel cu | channel] => [channel | channel cu]", part=FAST_PART),
    mutant("parakeet_ctc", "statistics past the factor", "cs", "running_mean (channel cs) => running_mean channel", part=FAST_PART),
    mutant("parakeet_ctc", "factors past the convolution's gain where its neurons are no ReLU", "ca", "ca as scale: PositiveScale[l, channel] if hidden_act == \"relu\" => ca as scale: PositiveScale[l, channel]", part=FAST_PART),
    mutant("parakeet_ctc", "negative factors in front of ReLU", "u1", "u1 as scale: PositiveScale[c1] => u1 as scale: Scale[c1]", part=FAST_PART),
    mutant("parakeet_ctc", "frequencies slow", "c2", "(c2' u2' frequency) => (frequency c2' u2')", part=FAST_PART),
    mutant("parakeet_ctc", "values of other heads", "h", "v_proj.weight (h ov) => v_proj.weight rows", "v_proj.bias (h ov) => v_proj.bias rows", "space ov: GL[l, h]\n => ", "res (h ov') => res (h back)", "size ov = => size back = head_dim or res // h\nsize ov =", "shift vb: => # shift vb:", part=FAST_PART),
    mutant("cosmos3_omni", "the tower past the deep projectors", "vres", "merger_list).{d}.(linear_fc1|mlp.0).weight deep (merge vres)' => merger_list).{d}.(linear_fc1|mlp.0).weight deep other"),
    mutant("cosmos3_omni", "keys without their signs", "sg", "(k_proj|to_k).weight (kv c pair sg') => (k_proj|to_k).weight (kv c pair)", part="qwen3_vl_text"),
    mutant("nemotron_h_omni", "queries fast in what is fused", "vision_qk", "qkv.weight [h qk | h qk' | h ov] => qkv.weight (h [qk | qk' | ov])", "qkv.bias [h qk | h qk' | h ov] => qkv.bias (h [qk | qk' | ov])", part="radio"),
    mutant("nemotron_h_omni", "films in other coordinates", "vision_res", "cls_token.token tokens res => cls_token.token tokens other", part="radio"),
    mutant("nemotron_h_omni", "the layer scale on the other side", "vision_s1", "lambda1 diag(res s1') => lambda1 diag(res s1)", part="radio"),
    mutant("nemotron_h_omni", "neighbours fast", "vision_res", "(merge vision_res np)' => (vision_res merge np)'"),
    mutant("nemotron_h_omni", "factors where neurons are squared", "pu", "space heard as => space pu as scale: PositiveScale[project]\nspace heard as", "mlp1.1.weight project => mlp1.1.weight (project pu)", "res project' => res (project pu')"),
    mutant("nemotron_h_omni", "what is heard in other coordinates", "res", "sound_projection.linear2.bias res => sound_projection.linear2.bias other"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""
