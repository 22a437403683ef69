"""Plausible wrong specs of models that are made of others, and of diffusion transformers (see `mutants`,
`test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

TWICE = "linear.weight [res | res | res | res | res | res] => linear.weight [res | res | res | res | res | rows]"
COMPOSED_MUTANTS = [
    # towers
    mutant("clip_text_model", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("clip_text_model", "projection past the last gain", "nf", "shared (res nf)' => shared res'"),
    mutant("clip_vision_model", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("clip_vision_model", "the first norm's bias forgotten", "res", "(pre_layrnorm|pre_layernorm).bias res => (pre_layrnorm|pre_layernorm).bias rows"),
    mutant("siglip_vision_model", "the probe in coordinates of its own", "res", "head.probe 1 1 (res nf) => head.probe 1 1 rows"),
    mutant("siglip_vision_model", "the probe past the last gain", "nf", "head.probe 1 1 (res nf) => head.probe 1 1 res"),
    mutant("siglip_vision_model", "pooling key not dual", "pqk", "weight [ph pqk | ph pqk' | => weight [ph pqk | ph pqk |"),
    # two towers
    mutant("clip", "image projection past the last gain", "vision_nf", "shared (vision_res vision_nf)' => shared vision_res'"),
    mutant("clip", "text projection in other coordinates", "text_res", "shared (text_res text_nf)' => shared other"),
    # a tower, a projector, a language model
    mutant("llava", "patches read in other coordinates", "vision_res", "(project pu) vision_res' => (project pu) other"),
    mutant("llava", "patches written in other coordinates", "res", "linear_2.weight res (project pu') => linear_2.weight other (project pu')"),
    mutant("llava", "negative scale under ReLU", "pu", "PositiveScale[project] => Scale[project]"),
    mutant("vipllava", "copies fast", "vision_res", "(copy vision_res np) => (vision_res copy np)"),
    mutant("vipllava", "the norm's bias not scaled", "np", "projector_layernorm.bias (copy vision_res np) => projector_layernorm.bias (copy vision_res)"),
    mutant("vipllava", "patches written in other coordinates", "res", "linear_2.weight res (project pu') => linear_2.weight other (project pu')"),
    mutant("llava-qwen2", "hidden bias forgotten", "project", "linear_1.bias (project pu) => linear_1.bias rows"),
    mutant("paligemma", "projection past the last gain", "vision_nf", "(vision_res vision_nf)' => vision_res'"),
    mutant("paligemma", "projector's bias forgotten", "res", "linear.bias res => linear.bias rows"),
    mutant("gemma3", "gains stored as they act", "ns", "diag(vision_res ns) - 1 => diag(vision_res ns)"),
    mutant(
        "gemma3", "the tower's last gain folded past a norm", "vision_nf",
        " without nf => ", "(vision_res ns)' res => (vision_res vision_nf ns)' res",
    ),
    # diffusion
    mutant("dit", "the last projection reads another condition", "emb", "proj_out_1.weight modulation emb' => proj_out_1.weight modulation other"),
    mutant("dit", "classes forgotten", "emb", "classes emb => classes other"),
    mutant("dit", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("sd3", "the text has heads of its own", "h", "add_q_proj.weight (h qk sg) => add_q_proj.weight rows"),
    mutant("sd3", "a value bias free in a joint attention", "vb", *(
        f"transformer_blocks.{{l}}.attn2.to_{name} => transformer_blocks.{{l}}.attn.to_{name}"
        for name in ("v.bias -> ", "out.0.bias via", "out.0.weight if dual")
    ), "attn.to_out.0.weight if dual => attn.to_out.0.weight"),
    mutant("sd3", "a gate does not follow", "res", "size emb = res => size emb = res\nsize rows = res", TWICE),
    mutant("sd3-later", "the text's keys keep the factor", "t", "norm_added_k.weight (qk t') => norm_added_k.weight (qk t)"),
    mutant("sd3-later", "any matrix under norms", "qk2", 'GL[l, h2] if dual and qk_norm == None => GL[l, h2]',
           "attn2.norm_q.weight (qk2 t2) => attn2.norm_q.weight gain", "attn2.norm_k.weight (qk2 t2') => attn2.norm_k.weight gain",
           'space sg2 as qk: Sign[l, h2, qk2] if dual and qk_norm == "rms_norm" => ',
           'space t2 as qk: Scale[l, qk2] if dual and qk_norm == "rms_norm" => '),
    mutant("flux", "half-split pairs", "t", "(pair c t) => (c pair t)", "(pair c t') => (c pair t')"),
    mutant("flux", "text and patches in two orders", "res", "context_embedder.weight res text => context_embedder.weight other text"),
    mutant("flux", "neurons before heads", "sff", "[sh sov' | sff'] => [sff' | sh sov']"),
]  # fmt: skip
