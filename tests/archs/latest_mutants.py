"""Plausible wrong specs of mixtures of experts, towers and models of plain torch (see `mutants`,
`test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

ROTATED_WITHOUT_POSITIONS = (
    "space c as qk: Complex[l, pair] => ",
    "size pair = qk_rope_head_dim // 2 => size rope = qk_rope_head_dim",
    "space ov: GL[l, h] => space ov: GL[l, h]\nspace rope as qk: GL[l]",
    "pair c' => rope'",
    "pair c => rope",
    "c' pair => rope'",
    "c pair => rope",
)
LATEST_MUTANTS = [
    # deepseek
    mutant("deepseek_v3", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant("deepseek_v3-halves", "interleaved pairs", "c", "[nope | c pair] => [nope | pair c]", "c' pair => pair c'"),
    mutant("deepseek_v3", "any matrix on the rotated part", "rope", *ROTATED_WITHOUT_POSITIONS),
    mutant("deepseek_v3", "a complex number per head", "c", "Complex[l, pair] => Complex[l, h, pair]", "pair c' => pair 2"),
    mutant(
        "deepseek_v3", "experts leave their group", "e",
        "space eg as expert: Perm[l] if eg > 1 => ", "Perm[l, eg] if eg > 1 => Perm[l] if eg > 1",
        "size eg = n_group or 1 => size eg = 1", "if eg > 1 => if eg > 2", "if eg == 1 => if eg < 2",
    ),
    mutant("deepseek_v3", "the router's bias forgotten", "e", "e_score_correction_bias (eg e) => e_score_correction_bias rows"),
    mutant("deepseek_v3", "the latent's gain forgotten", "lat", "kv_a_layernorm.weight (lat lg) => kv_a_layernorm.weight (other lg)", "size ls = 1 => size ls = 1\nsize other = lat", "space lg as latent: Scale[l, lat] => ", "(lat ls lg)' => (lat ls)'", "(other lg) => other"),
    mutant("deepseek_v3", "the latent's reader without its sign", "ls", "(lat ls lg)' => (lat lg)'"),
    mutant("deepseek_v3", "no factor in the reader", "qg", "(qlat qs qg)' => (qlat qs)'"),
    mutant("deepseek_v2", "values before keys", "ov", "(h [nope' | ov]) => (h [ov | nope'])"),
    mutant("deepseek_v2", "key without positions not dual", "nope", "[nope' | ov] => [nope | ov]"),
    mutant("deepseek_v2-lite", "shared experts' gate scaled", "su", "shared_experts.gate_proj.weight sff => shared_experts.gate_proj.weight (sff su)"),
    # phimoe, gpt_oss, olmoe
    mutant("phimoe", "router forgotten", "e", "gate.weight e (res n2)' => gate.weight rows (res n2)'"),
    mutant("phimoe", "norm's bias not scaled", "n2", "post_attention_layernorm.bias (res n2) => post_attention_layernorm.bias res"),
    mutant("gpt_oss", "sinks forgotten", "kv", "sinks (kv g) => sinks rows"),
    mutant("gpt_oss", "gate before up", "ff", "(ff 2) => (2 ff)"),
    mutant(
        "gpt_oss", "value bias free under sinks", "vb",
        "embed_tokens.weight vocab res\n => shift vb: layers.{l}.self_attn.v_proj.bias -> "
        "layers.{l}.self_attn.o_proj.bias via layers.{l}.self_attn.o_proj.weight\nembed_tokens.weight vocab res\n",
    ),
    mutant("olmoe", "heads without their gains", "kv", "(kv g c pair t) => rows", "(kv c pair t') => rows", "space t as qk: Scale[l, kv, pair] => "),
    mutant("olmoe", "gains not dual", "t", "(kv c pair t') => (kv c pair t)"),
    mutant("olmoe", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    # encoders of texts
    mutant("nomic_bert", "fused head by head", "h", "[h c pair | h c' pair | h ov] => (h [c pair | c' pair | ov])"),
    mutant("nomic_bert", "up and gate mistaken", "u", "fc11.weight (ff u) => fc11.weight ff", "fc12.weight ff => fc12.weight (ff u)"),
    mutant("nomic_bert", "rotated post-LN stream", "res", "residual res: Perm => residual res: O"),
    mutant("xlm-roberta-xl", "norms behind the branches", "n1", "(h ov) (res n1)' => (h ov) res'"),
    mutant("xlm-roberta-xl-words", "the last gain in the tied head", "nf", "residual nf: Scale[res] if not words => residual nf: Scale[res]"),
    mutant("xlm-roberta-xl-words", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    # encoders of images
    mutant("beit", "the table of places forgotten", "h", "relative_position_bias_table place h => relative_position_bias_table place heads"),
    mutant("beit", "layer scale not divided", "s1", "lambda_1 diag(res s1') => lambda_1 res"),
    mutant("beit-shared", "heads per layer under one table", "h", "space h: Perm if => space h: Perm[l] if", "bias_table place h if => bias_table place heads if"),
    mutant("data2vec-vision", "bias past the layer scale", "s2", "output.dense.bias (res s2) => output.dense.bias res"),
    mutant("blip", "cross-attention past the last gain", "vnf", "(t_xh t_xqk') (vres vnf)' => (t_xh t_xqk') vres'"),
    mutant("blip", "patches fused head by head", "vh", "[vh vqk | vh vqk' | vh vov] => (vh [vqk | vqk' | vov])"),
    mutant("blip", "negative scale under ReLU", "vu", "PositiveScale[l, vff] => Scale[l, vff]"),
    mutant("timm_vit", "fused head by head", "h", "[h qk | h qk' | h ov] => (h [qk | qk' | ov])"),
    mutant("timm_vit-scaled", "layer scale not divided", "s1", "diag(res s1') => res"),
    mutant("timm_vit-scaled", "the head past the norm behind the mean", "nf", "head.weight labels (res nf)' => head.weight labels res'"),
    mutant("blip-retrieval", "cross-attention's output not dual", "t_xov", "(xh xov') => (xh xov)", part="blip_text_model"),
]  # fmt: skip
