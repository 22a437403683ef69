"""What `toy_newest` holds the law to: the largest groups of streams, and plausible wrong specs (see
`test_mutants`)."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_languages import ROUTED_LATENT
from toy_newest import (
    EYE,
    FILTER,
    GLM5,
    HRM,
    HY3,
    KIMI,
    LAGUNA,
    LING,
    LONGCAT,
    MELLUM,
    MIMO,
    MINIMAX,
    OLMO,
    SPEAKER,
)

WORDS = ["Model", "ForCausalLM"]
NEWEST_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "AXK1": ({**ROUTED_LATENT, "mlp_layer_types": ["dense", "sparse"]}, WORDS),
    "BailingHybrid": (LING, WORDS),
    "Exaone4_5_": ({"text_config": SPEAKER, "vision_config": EYE}, ["ForConditionalGeneration"]),
    "GlmMoeDsa": (GLM5, WORDS),
    "HrmText": (HRM, WORDS),
    "HYV3": (HY3, WORDS),
    "KimiLinear": (KIMI, WORDS),
    "Laguna": (LAGUNA, WORDS),
    "LongcatFlash": (LONGCAT, WORDS),
    "Mellum": (MELLUM, WORDS),
    "MiMoV2Flash": (MIMO, WORDS),
    "MiniMax": (MINIMAX, WORDS),
    "OlmoHybrid": (OLMO, WORDS),
    "OpenAIPrivacyFilter": (FILTER, ["Model", "ForTokenClassification"]),
}
NEWEST_STREAMS = {
    **dict.fromkeys(
        [
            "nemotron_h-latent",
            "mellum",
            "glm_moe_dsa",
            "hy_v3",
            "mimo_v2_flash",
            "longcat_flash-busy",
            "kimi_linear",
            "kimi_linear-queried",
            "laguna",
            "laguna-each",
            "openai_privacy_filter",
            "bailing_hybrid",
        ],
        "O",
    ),
    **dict.fromkeys(
        [
            "deepseek_v3-ahead",
            "axk1",
            "axk1-halves",
            "minimax",
            "longcat_flash",
            "olmo_hybrid",
            "olmo_hybrid-unturned",
        ],
        "SignedPerm",
    ),
}
"""Toy -> the largest group of its stream."""
STILL_STREAMS: dict[str, dict[str, str]] = {
    "exaone4_5": {"res": "SignedPerm", "vision_res": "O"},
    "exaone4_5-ahead": {"vision_res": "O"},
    "ernie4_5_moe-ahead": {},
    "exaone_moe-ahead": {},
    "nemotron_h-ahead": {},
    "glm4_moe-ahead": {},
    "mellum-ahead": {},
    "bailing_hybrid-ahead": {},
}
"""The streams of toys with two, or with none, since layers that nothing runs read it."""
UNBIASED_NEWEST = ["mellum-ahead", "exaone4_5", "exaone4_5-ahead"]
"""Toys of a text with a free value bias that have none."""
NEWEST_MUTANTS = [
    # layers that predict further tokens, and Nemotron's latents
    mutant("nemotron_h-latent", "the latent's reader not dual", "lat", "ff lat' if lat => ff lat if lat"),
    mutant("nemotron_h-latent", "experts' output not in the latent", "out", "down_proj.weight out ff' if lat => down_proj.weight other ff' if lat", "size out = lat => size out = lat\nsize other = lat"),
    mutant("nemotron_h-latent", "the latent's bias forgotten", "lat", "fc1_latent_proj.bias lat if => fc1_latent_proj.bias other if", "size out = lat => size out = lat\nsize other = lat"),
    # kin
    mutant("mellum", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("mellum", "router forgotten", "e", "gate.(wg.|)weight e (res n2)' => gate.(wg.|)weight rows (res n2)'"),
    mutant("glm_moe_dsa", "half-split pairs", "c", "size halves = 0\n => size halves = 1\n"),
    mutant("glm_moe_dsa", "the indexer's weights forgotten", "ih", "weights_proj.weight ih (res n1)' => weights_proj.weight rows (res n1)'"),
    mutant("axk1", "experts scaled through the norm behind them", "n2", "post_mlp_layernorm.weight diag(res) => post_mlp_layernorm.weight diag(res n2)"),
    mutant("axk1-halves", "interleaved pairs", "c", "[nope | c pair] => [nope | pair c]", "c' pair => pair c'"),
    mutant("hy_v3", "the router's bias forgotten", "e", "expert)_bias (eg e) => expert)_bias rows"),
    mutant("hy_v3", "shared experts' bias not scaled", "su", "up_proj.bias (sff su) => up_proj.bias sff"),
    # layers of two kinds
    mutant("mimo_v2_flash", "sinks forgotten", "nkv", "sinks) (nkv ng) => sinks) rows"),
    mutant("mimo_v2_flash", "as many key-value heads turned as a whole", "nc", "[nc npair | nrest] => [nc npair | rows]", "[nc' npair | nrest'] => [rows | nc' npair]", "space nrest as qk: GL[l, nkv] if near and nrest > 0 => ", "size nov = => size rows = nrest\nsize nov ="),
    mutant("mimo_v2_flash", "the stream between experts and router", "n2", "gate.weight (eg e) (res n2)' => gate.weight (eg e) res'"),
    mutant("minimax", "rotated behind gains that stay", "n1", "residual nf: => residual n1: Scale[l, res]\nresidual nf:", "input_layernorm.weight diag(res) => input_layernorm.weight diag(res n1)", "_proj.weight (lh [lqk | lqk | lov]) res' => _proj.weight (lh [lqk | lqk | lov]) (res n1)'", "output_gate.weight (lh lov) res' => output_gate.weight (lh lov) (res n1)'", "q_proj.weight (kv g c pair) res' => q_proj.weight (kv g c pair) (res n1)'", "k_proj.weight (kv c' pair) res' => k_proj.weight (kv c' pair) (res n1)'", "v_proj.weight (kv ov) res' => v_proj.weight (kv ov) (res n1)'"),
    mutant("minimax", "heads that decay at the rate of their place", "lh", "space lqk as qk => space lh as h: Perm[l]\nspace lqk as qk"),
    mutant("minimax", "values without their gate", "lov", "output_gate.weight (lh lov) => output_gate.weight rows"),
    mutant("minimax", "any matrix through an activation", "lqk", "space lqk as qk: Perm => space lqk as qk: O"),
    mutant("longcat_flash", "a factor past the experts that do nothing", "n2", "and idle == 0 => "),
    mutant("longcat_flash", "idle experts in the router's bias", "idle", "e_score_correction_bias [e | idle] => e_score_correction_bias [e | other]", "size ff = => size other = idle\nsize ff ="),
    mutant("longcat_flash-busy", "the second MLP behind the first norm", "n4", "mlps.{s:1}.up_proj.weight (dff du) (res n4)' => mlps.{s:1}.up_proj.weight (dff du) (res n2)'"),
    mutant("longcat_flash", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant("kimi_linear", "the shared key not dual", "rope", "[lat ls | rope'] => [lat ls | rope]"),
    mutant("kimi_linear", "the delta rule past the gain", "n1", "self_attn.b_proj.weight dh (res n1)' => self_attn.b_proj.weight dh res'"),
    mutant("kimi_linear", "the delta rule writes other coordinates", "res", "o_proj.weight res (dh dv' ds') => o_proj.weight other (dh dv' ds')"),
    mutant("kimi_linear-queried", "no factor in the reader", "qg", "(qlat qs qg)' => (qlat qs)'"),
    mutant("laguna", "gates forgotten", "ng", "g_proj.weight (nkv ng) => g_proj.weight rows"),
    mutant("laguna", "all of a head turned", "rs", "space rs as qk: Sign[l, kv, rest] => space rs as qk: Scale[l, kv, rest]"),
    mutant("laguna-each", "any matrix on gated values", "ov", "space ov: Perm[l, kv] if full and not whole => space ov: GL[l, kv] if full and not whole", "g_proj.weight (kv g ov) (res n1)' => g_proj.weight (kv g gates) (res n1)'", "size nov = => size gates = ov\nsize nov ="),
    mutant("openai_privacy_filter", "half-split pairs", "c", "size beside = 1\n => size beside = 0\n"),
    mutant("openai_privacy_filter", "gate and up beside each other", "ff", "[ff | ff] if beside => (ff 2) if beside"),
    mutant("olmo_hybrid", "the norm before is that behind", "n2", "{l!full}.mlp.gate_proj.weight ff (res n2)' => {l!full}.mlp.gate_proj.weight ff res'"),
    mutant("olmo_hybrid", "a sign per coordinate under rotations", "sg", "size turned = 0 if rope_parameters and => size turned = 0 if vocab_size or rope_parameters and"),
    mutant("olmo_hybrid-unturned", "gains not dual", "t", "(kv c pair t') => (kv c pair t)"),
    mutant("olmo_hybrid", "the delta rule past the gain", "n1", "a_proj.weight (dh dg) (res n1)' => a_proj.weight (dh dg) res'"),
    mutant("bailing_hybrid", "the gate of the head forgotten", "h", "g_proj.weight h (res n1)' => g_proj.weight rows (res n1)'"),
    mutant("bailing_hybrid", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant("bailing_hybrid", "the delta rule writes other coordinates", "res", "dense.weight res (dh dv' ds') => dense.weight other (dh dv' ds')"),
    mutant("hrm_text", "gates behind queries", "ov", "[h ov | h c pair | h c' pair | h ov] => [h c pair | h c' pair | h ov | h ov]"),
    mutant("hrm_text", "any matrix on gated values", "lov", "space lov as ov: Perm[m, lh] => space lov as ov: GL[m, lh]"),
    mutant("hrm_text", "the first state forgotten", "res", "z_L_init res => z_L_init start"),
    mutant("exaone4_5", "queries in groups of others", "vision_h", "[h g c pair | => [g h c pair |", "res (h g ov') => res (g h ov')", part="exaone4_5_vision"),
    mutant("exaone4_5", "interleaved pairs", "vision_c", "g c pair => g pair c", "h c' pair | => h pair c' |", part="exaone4_5_vision"),
    mutant("exaone4_5", "gate scaled", "vision_u", "gate_proj.weight ff => gate_proj.weight (ff u)", part="exaone4_5_vision"),
]  # fmt: skip
