"""Families of `toy_sparse` whose saved names are tried, their streams, what their toys cannot move, and plausible
wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_sparse import DOCLING, GLM5, GLM5_WHOLE, HUNYUAN, LARGE, LARGE_WHOLE, MINIMAX, MINIMAX_WHOLE

COMPOSED = ["Model", "ForConditionalGeneration"]
SPARSE_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "MistralLarge4": ({**LARGE_WHOLE, "text_config": {**LARGE, "attention_bias": True}}, COMPOSED),
    "MistralLarge4Text": (LARGE, ["Model"]),
    "HYV4": ({**HUNYUAN, "attention_bias": True}, ["Model", "ForCausalLM"]),
    "Glm5Next": ({**GLM5_WHOLE, "text_config": {**GLM5, "attention_bias": True}}, COMPOSED),
    "Glm5NextText": (GLM5, ["Model"]),
    "Glm5NextVision": (GLM5_WHOLE["vision_config"], []),
    "GraniteDocling": ({**DOCLING, "density_router_hidden_size": 14}, COMPOSED),
    **dict.fromkeys(["GraniteDoclingText", "GraniteDoclingVision"], (DOCLING, [])),
    "MiniMaxM3VL": (MINIMAX_WHOLE, ["Model"]),
    "MiniMaxM3VLText": (MINIMAX, ["Model"]),
}  # fmt: skip
SPARSE_STREAMS: dict[str, dict[str, str]] = {
    "mistral_large4": {"res": "Perm", "vision_res": "SignedPerm", "merged": "O"},
    **{name: {"res": "O", "copy": "Perm"} for name in ("hy_v4", "hy_v4-groups")},
    **{name: {"res": "Perm", "vision_res": "Perm"} for name in ("granite_docling", "granite_docling-fine")},
    "glm5_next": {"res": "O", "vision_vres": "O", "vision_down": "O"},
    **{name: {"res": "O", "vres": "Perm", "mid": "O"} for name in ("minimax_m3_vl", "minimax_m3_vl-one")},
}
"""The largest groups of their streams (see `test_streams`)."""
SPARSE_IDLE = {("granite_docling", "vb"), ("granite_docling-fine", "vb")}
"""Shifts of biases that a toy has not."""
TEXT = "mistral_large4_text"
GLM5_TEXT = "glm5_next_text"
MINIMAX_TEXT = "minimax_m3_vl_text"
SPARSE_MUTANTS = [
    mutant("mistral_large4", "the norm's gain where a choice reads behind it", "n1", "layers.{l:chosen}.attention_norm.weight diag(res) => layers.{l:chosen}.attention_norm.weight diag(res n1)", part=TEXT),
    mutant("mistral_large4", "signs through the choice's LayerNorm", "res", "residual res: Perm => residual res: SignedPerm", part=TEXT),
    mutant("mistral_large4", "heads without their scaling", "qs", "softmax_scaling.bias) (h qs') => softmax_scaling.bias) h", part=TEXT),
    mutant("mistral_large4", "halves of a head turned together", "c", "[nope | pair c] => [nope | c pair]", "[lat ls | pair c'] => [lat ls | c' pair]", part=TEXT),
    mutant("mistral_large4", "negative factors through ReLU", "ip", "ip as scale: PositiveScale => ip as scale: Scale", part=TEXT),
    mutant("mistral_large4", "heads of the choice without their weights", "ih", "weights_proj.weight (ih ip') => weights_proj.weight rows", part=TEXT),
    mutant("mistral_large4", "keys of the choice scaled twice", "jt", "irest jt'] => irest jt]", part=TEXT),
    mutant("mistral_large4", "keys of the choice without their norm's bias", "iwide", "k_norm.bias (iwide kt) => k_norm.bias rows", part=TEXT),
    mutant("mistral_large4", "patches of the tower in halves", "vision_c", "wq.weight (h pair c) => wq.weight (h c pair)", "wk.weight (h pair c') => wk.weight (h c' pair)", part="pixtral"),
    mutant("mistral_large4", "past the gain in front of the projector", "np", "(vision_res np merge)' => (vision_res merge)'"),
    mutant("mistral_large4", "what is merged in other coordinates", "merged", "linear_1).weight (project pu) merged' => linear_1).weight (project pu) other"),
    mutant("minimax_m3_vl", "groups without their choice", "kv", "(kv [ic ipair isg | irest irs]) (res n1)' if ih == kv => (ih [ic ipair isg | irest irs]) (res n1)' if ih == kv", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "factors beside what has one added", "u", "space ff: Perm[l, e] if routed => space ff: Perm[l, e] if routed\nspace u as scale: Scale[l, e, ff]", "w3.weight ff => w3.weight (ff u)", "w2.weight res ff' => w2.weight res (ff u')", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "a factor in gains of 1 + w", "t", "size sg = 1 => size sg = 1\nsize t = 1", "space ov: => space t as qk: Scale[l, pair]\nspace ov:", "self_attn.q_norm.weight [c pair | rest] => self_attn.q_norm.weight [c pair t | rest]", "self_attn.k_norm.weight [c pair | rest] => self_attn.k_norm.weight [c pair t' | rest]", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "all of a head turned", "sg", "* (rope_parameters.partial_rotary_factor or partial_rotary_factor or 1) => * 1", "rs as qk: Sign[l, kv, rest] if rest > 0 => rs as qk: Sign[l, kv, rest] if rest > 0 and ih == 0", "index_n_heads or => 3 or", "ihead - 2 * ipair => ihead - 2 * 3", "size ipair = pair => size ipair = 3", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "signs of the choice's queries alone", "isg", "indexer.k_proj).weight [ic ipair isg | => indexer.k_proj).weight [ic ipair |", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "the choice's coordinates past their gain", "irest", "(index_k_norm|indexer.k_norm).weight [ic ipair | irest] => (index_k_norm|indexer.k_norm).weight gains", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "the router's bias forgotten", "e", "e_score_correction_bias e => e_score_correction_bias rows", part=MINIMAX_TEXT),
    mutant("minimax_m3_vl", "patches in halves of all their coordinates", "vc", "size vpair = 3 * ((sixth - sixth % 2) // 2) => size vpair = vhead // 2"),
    mutant("minimax_m3_vl", "rotated behind the norm of patches", "vres", "residual vres: Perm => residual vres: OFixingOnes", "diag(vres) => vres", "diag(vres vn1) => (vres vn1)", "diag(vres vn2) => (vres vn2)"),
    mutant("minimax_m3_vl", "neighbours fast", "mid", "(merge mid)' => (mid merge)'"),
    mutant("hy_v4", "copies that are read in other places", "copy", "hc_fn) (copy hf) (copy res)' => hc_fn) (rows hf) (copy res)'", "size vocab => size rows = copy\nsize vocab"),
    mutant("hy_v4", "copies that are written in other places", "copy", "hc_attn_layer.hc_base [copy | copy] => hc_attn_layer.hc_base [copy | rows]", "size vocab => size rows = copy\nsize vocab"),
    mutant("hy_v4", "what copies are read by, scaled alone", "ra", "hc_attn_layer.hc_scale [ra' | wa'] => hc_attn_layer.hc_scale 2"),
    mutant("hy_v4", "any matrix on gated values", "ov", "space ov: Perm[l, h] => space ov: GL[l, h]", "space os as scale: Scale[l, h, ov]\n => ", "[nope' | ov os] => [nope' | ov]", "(h ov' os') => (h ov')", "(h ov) (res n1)' => gates (res n1)'"),
    mutant("hy_v4", "gates scaled with their values", "os", "(h ov) (res n1)' => (h ov os) (res n1)'"),
    mutant("hy_v4", "sinks forgotten", "h", "sinks) h => sinks) rows"),
    mutant("hy_v4", "pairs as neighbours", "c", "(h [nope | c pair]) => (h [nope | pair c])", "[lat ls | c' pair] => [lat ls | pair c']"),
    mutant("hy_v4", "factors where experts are cut off", "u", "u as scale: Sign => u as scale: Scale", "size u = 1\n => "),
    mutant("hy_v4", "keys of the choice without their norm's bias", "it", "k_norm.bias [irest jt | ic ipair it] => k_norm.bias [irest jt | ic ipair]"),
    mutant("glm5_next", "a head's rates forgotten", "lh", "A_log lh => A_log rows", part=GLM5_TEXT),
    mutant("glm5_next", "keys that fade at other rates", "kc", "dt_bias (lh kc) => dt_bias (lh rates)", "size vocab => size rates = kc\nsize vocab", part=GLM5_TEXT),
    mutant("glm5_next", "values past their convolution", "vc", "v_conv1d.weight (lh vc) 1 => v_conv1d.weight (lh rows) 1", "size vocab => size rows = vc\nsize vocab", part=GLM5_TEXT),
    mutant("glm5_next", "any matrix on keys behind a convolution", "kc", "kc as qk: Perm[l, lh] => kc as qk: GL[l, lh]", "k_proj.weight (lh kc) => k_proj.weight (lh kc')", part=GLM5_TEXT),
    mutant("glm5_next", "the norm's gain where no factor reads it", "vs", "res (lh vc' vs') => res (lh vc')", part=GLM5_TEXT),
    mutant("glm5_next", "what gates are made of, on one side", "ga", "g_b_proj.weight (lh vc) ga' => g_b_proj.weight (lh vc) other", part=GLM5_TEXT),
    mutant("glm5_next", "what copies are written by, scaled alone", "wa", "hc_attn_scale [ra' | wa' | ma'] => hc_attn_scale [ra' | 1 | ma']", part=GLM5_TEXT),
    mutant("glm5_next", "pools in other coordinates", "ik", "compress_gate ik => compress_gate rows", part=GLM5_TEXT),
    mutant("glm5_next", "factors where neurons are cut off", "du", "du as scale: Sign => du as scale: Scale", "size du = 1\n => ", part=GLM5_TEXT),
    mutant("glm5_next", "factors where the tower's neurons are cut off", "vision_u", "u as scale: Sign[v, ff] => u as scale: Scale[v, ff]", "size u = 1\n => ", part="glm5_next_vision"),
    mutant("granite_docling", "signs through the connector's LayerNorm", "res", "residual res: Perm => residual res: SignedPerm"),
    mutant("granite_docling", "sinusoids permuted", "mid", "residual nin => space mid as ff: Perm\nresidual nin", "weight res mid => weight res mid'"),
    mutant("granite_docling", "the projector's neurons not permuted back", "cdeep", "res cdeep' => res other"),
    mutant("granite_docling-fine", "neighbours fast", "vision_res", "mid (fine vision_res nin)' => mid (vision_res nin fine)'"),
    mutant("granite_docling", "past the gain in front of the connector", "nin", "mid (coarse vision_res nin)' => mid (coarse vision_res)'"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""
