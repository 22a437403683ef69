"""What `toy_recent` holds the law to: the groups of streams, and plausible wrong specs (see `test_mutants`)."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_languages import TWO
from toy_recent import (
    ARIA,
    ARIA_SEEN,
    DEEPSEEK4,
    ERNIE_EYE,
    ERNIE_TEXT,
    FLINT,
    GLMGA,
    HUNYUAN_EYE,
    KOLIBRI,
    LFM3,
    LFM3_EYE,
    LXMERT,
    OVIS_EYE,
    QIANFAN,
    QWEN4,
    QWEN4_SEEN,
    ZAYA,
)

WORDS = ["Model", "ForCausalLM"]
SEEN = ["Model", "ForConditionalGeneration"]
RECENT_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "AriaText": (ARIA, WORDS),
    "DeepseekV4": (DEEPSEEK4, WORDS),
    "Flint": (FLINT, WORDS),
    "Kolibri1": (KOLIBRI, WORDS),
    "Lfm3": (LFM3, WORDS),
    "Qwen4ExpText": (QWEN4, ["Model"]),
    "Lfm3Vl": (
        {"text_config": {**LFM3, "model_type": "lfm3"}, "vision_config": LFM3_EYE},
        SEEN,
    ),
    "Lxmert": (LXMERT, ["Model", "ForPreTraining", "ForQuestionAnswering"]),
    "QianfanOCR": (
        {"text_config": {**TWO, "model_type": "qwen3"}, "vision_config": QIANFAN},
        ["ForConditionalGeneration"],
    ),
    "Zaya": (ZAYA, WORDS),
    "Aria": ({"text_config": ARIA, **ARIA_SEEN}, SEEN),
    "Ernie4_5_VLMoe": ({"text_config": ERNIE_TEXT, "vision_config": ERNIE_EYE}, SEEN),
    "Qwen4Exp": (QWEN4_SEEN, SEEN),
    "Glmga": (GLMGA, []),  # without a class of its own in the library's list, as those below
    "HunYuanVLText": (TWO, []),
    "Ovis2Vision": (OVIS_EYE, []),
    "HunYuanVL": ({"text_config": TWO, "vision_config": HUNYUAN_EYE}, SEEN),
    "Ovis2": (
        {
            "text_config": {**TWO, "model_type": "qwen2"},
            "vision_config": OVIS_EYE,
            "hidden_size": 48,
            "vocab_size": 67,
        },
        SEEN,
    ),
}
RECENT_STREAMS: dict[str, dict[str, str]] = {
    **{name: {"res": "O", "vision_res": "SignedPerm"} for name in ("ovis2", "ovis2-plain")},
    "aria": {"res": "O", "vision_res": "Perm"},
    "aria_text": {"res": "O"},
    "deepseek_v4": {"res": "O"},
    "deepseek_v4-ahead": {},
    "qwen4_exp": {"res": "Perm", "vres": "OFixingOnes"},
    "flint": {"res": "O"},
    **{name: {"res": "SignedPerm"} for name in ("lfm3", "lfm3-plain", "kolibri1")},
    "qianfan_ocr": {"res": "O", "vres": "Perm"},
    "glmga": {"res": "SignedPerm", "vision_vres": "SignedPerm", "vision_down": "O"},
    "lfm3_vl": {"res": "SignedPerm", "vres": "Perm"},
    "ernie4_5_vl_moe": {"res": "SignedPerm", "vres": "OFixingOnes", "sout": "Perm", "tout": "Perm"},
    "zaya": {"res": "SignedPerm", "rres": "SignedPerm"},
    "hunyuan_vl": {"res": "SignedPerm", "vres": "OFixingOnes", "wide": "O"},
}
"""Toy -> the largest groups of its streams."""
RECENT_IDLE = {
    ("ovis2", "vb"),
    ("ovis2-plain", "vb"),
    ("hunyuan_vl", "vb"),
    ("aria", "vb"),
    ("qianfan_ocr", "vb"),
    ("glmga", "vb"),
    ("glmga", "vision_vb"),
}
"""What a toy declares but cannot move."""
RECENT_MUTANTS = [
    mutant("ovis2", "the table of what is seen in other coordinates", "res", "visual_embeddings_table.weight piece res => visual_embeddings_table.weight piece other"),
    mutant("ovis2", "the neighbours' coordinates fast", "vision_res", "(merge vision_res vision_nf)' => (vision_res vision_nf merge)'"),
    mutant("ovis2-plain", "the head past the gain", "vision_nf", "(merge vision_res vision_nf)' => (merge vision_res)'"),
    mutant("hunyuan_vl", "a factor through the norm behind the projector", "nf", "after_rms.weight diag(res) => after_rms.weight diag(res nf)"),
    mutant("hunyuan_vl", "the end of a row forgotten", "wide", "image_newline wide => image_newline piece"),
    mutant("hunyuan_vl", "the beginning of an image in other coordinates", "res", "image_begin res => image_begin other"),
    mutant("deepseek_v4", "a factor through the cut", "u", "space u as scale: Sign[l, e, ff] => space u as scale: Scale[l, e, ff]", "size u = 1\n => "),
    mutant("deepseek_v4", "a sign per coordinate", "sg", "Sign[l, pair] => Sign[l, pair, c]"),
    mutant("deepseek_v4", "what compresses keys without its gates", "nope", "compressor.wgate.weight [nope | pair c] (res n1)' => compressor.wgate.weight gates (res n1)'"),
    mutant("deepseek_v4", "the copies' coordinates fast", "res", "hc_attn_fn mixes (stream res)' => hc_attn_fn mixes (res stream)'"),
    mutant("deepseek_v4", "a group's latent not dual", "rank", "res (og rank') => res (og rank)"),
    mutant("qwen4_exp_text", "signs through the weights per coordinate", "res", "residual res: Perm => residual res: SignedPerm"),
    mutant("qwen4_exp_text", "the copies' coordinates fast", "res", "hyper_connection_mixer.input_mix_weight_up.weight (stream res) => hyper_connection_mixer.input_mix_weight_up.weight (res stream)"),
    mutant("qwen4_exp_text", "neurons of low rank forgotten", "mlow", "(stream res) mlow' => (stream res) rows"),
    mutant("qwen4_exp_text", "the indexer's key among its queries", "ih", "[ih ix | ix] res' => [ix | ih ix] res'"),
    mutant("lfm3", "gates forgotten", "g", "(gate_proj|g_proj).weight (kv g) => (gate_proj|g_proj).weight rows"),
    mutant("lfm3", "gains not dual", "t", "(k_layernorm|k_norm).weight (c pair t') => (k_layernorm|k_norm).weight (c pair t)"),
    mutant("lfm3", "a factor through the norm behind", "nf", "post_ffn_norm.weight diag(res) => post_ffn_norm.weight diag(res nf)"),
    mutant("flint", "sinks forgotten", "kv", "(softmax_offset|sinks) (kv g) => (softmax_offset|sinks) rows"),
    mutant("flint", "gates scaled", "su", "(shared_expert|shared_experts).gate_proj.weight sff => (shared_expert|shared_experts).gate_proj.weight (sff su)"),
    mutant("kolibri1", "the router's bias forgotten", "e", "e_score_correction_bias) e => e_score_correction_bias) rows"),
    mutant("kolibri1", "a sign per coordinate under rotations", "sg", "Sign[l, kv, pair] => Sign[l, kv, pair, c]"),
    mutant("qianfan_ocr", "fused head by head", "vh", "[vh vqk vsg | vh vqk' vsg' | vh vov] (vres => (vh [vqk vsg | vqk' vsg' | vov]) (vres"),
    mutant("qianfan_ocr", "a layer scale on the reader's side", "vs1", "ls1 diag(vres vs1') => ls1 diag(vres vs1)"),
    mutant("qianfan_ocr", "the neighbours' coordinates fast", "vres", "(project pu) (merge vres)' => (project pu) (vres merge)'"),
    mutant("lxmert", "streams of their own", "res", "encoder.visn_fc.visn_fc.weight res seen => encoder.visn_fc.visn_fc.weight other seen"),
    mutant("lxmert", "keys of cross-attention not dual", "xqk", "visual_attention.att.key.weight (xh xqk') => visual_attention.att.key.weight (xh xqk)"),
    mutant("lxmert", "the bias of objects' neurons forgotten", "vff", "visn_inter.dense.bias (vff vu) => visn_inter.dense.bias rows"),
    mutant("lxmert-answers", "the answers' norm forgotten", "told", "logit_fc.2.weight told => logit_fc.2.weight rows"),
    mutant("glmga", "the last map past its factor", "vision_pu", "res (vision_project vision_pu') => res vision_project'"),
    mutant("lfm3_vl", "the neighbours' coordinates fast", "vres", "(project pu) (merge vres vnf)' => (project pu) (vres vnf merge)'"),
    mutant("lfm3_vl", "queries in groups of others", "vkv", "(vkv vg vc vpair vsg) => (vg vkv vc vpair vsg)", "vres (vkv vg vov') => vres (vg vkv vov')"),
    mutant("lfm3_vl", "gains not dual", "vt", "(vc vpair vt') => (vc vpair vt)"),
    mutant("ernie4_5_vl_moe", "half-split pairs", "c", "(kv g pair c) => (kv g c pair)", "(kv pair c') => (kv c' pair)"),
    mutant("ernie4_5_vl_moe", "one moment forgotten", "sout", "tneuron [sout' | sout'] => tneuron [sout' | rows]", "size tout => size rows = sout\nsize tout"),
    mutant("ernie4_5_vl_moe", "the router of pieces forgotten", "n2", "gate.weight_1 (res n2)' pieces => gate.weight_1 res' pieces"),
    mutant("zaya", "a convolution of other coordinates", "rest", "[c sg | rest] width => head width"),
    mutant("zaya", "the router's memory in other coordinates", "rres", "router_states_scale diag(rres) => router_states_scale rows"),
    mutant("zaya", "the balance of experts forgotten", "e", "balancing_biases [e | 1] => balancing_biases classes"),
    mutant("zaya", "keys' factors of other heads", "k", "qk_norm.temp [k | d] => qk_norm.temp kv"),
    mutant("aria", "the last norm read", "vision_nf", "idefics3_vision without nf => idefics3_vision", "between (vision_res pn)' => between (vision_res pn vision_nf)'"),
    mutant("aria", "the queries' head by head", "ph", "[ph pqk | ph pqk' | ph pov] => (ph [pqk | pqk' | pov])"),
    mutant("aria_text", "the router forgotten", "e", "router.weight e (res n2)' => router.weight rows (res n2)'"),
    mutant("aria_text", "gate and up beside each other", "ff", "(res n2)' [ff | ff u] => (res n2)' (ff 2)", "(ff u') res => ff' res", "space u as scale: Scale[l, e, ff] => "),
]  # fmt: skip
