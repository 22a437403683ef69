"""Plausible wrong specs of the architectures in `toy_decoders` and `toy_seeing`, which the law must refute (see
`test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

LATER_MUTANTS = [
    # llama, once more
    mutant("seed_oss", "query bias forgotten", "c", "q_proj.bias (kv g c pair) => q_proj.bias rows"),
    mutant("smollm3", "any matrix where one layer turns", "c", "space c as qk: Complex[l, kv, pair] => size c = 2\nspace c as qk: GL[l, kv, pair]"),
    mutant("arcee", "a factor through a square", "u", "size u = 1\n => space u as scale: Scale[l, ff]\n"),
    # interleaved pairs
    mutant("ernie4_5", "half-split pairs", "c", "[pair c | rest] => [c pair | rest]", "[pair c' | rest'] => [c' pair | rest']"),
    mutant("glm", "half-split pairs", "c", "[pair c | rest] => [c pair | rest]", "[pair c' | rest'] => [c' pair | rest']"),
    mutant("glm", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("glm", "key bias free where it is rotated", "kb", "bias#1 if => bias#0 if"),
    mutant("glm4", "rotated behind the branches' norms", "res", "residual res: SignedPerm folded O => residual res: O", "diag(res) => res", "diag(res n1) => (res n1)", "diag(res n2) => (res n2)", "diag(res nf) => (res nf)"),
    mutant("glm4_moe", "a complex number under norms", "c", "Complex[l, kv, pair] if not normed => Complex[l, kv, pair]", "[c pair t | rest rt] => [2 pair t | rest rt]", "[c pair t' | rest rt'] => [2 pair t' | rest rt']", "size c = 2\n => "),
    mutant("glm4_moe", "gains of the rest not dual", "rt", "rest rt'] => rest rt]"),
    mutant("glm4_moe-plain", "the router's bias forgotten", "e", "(e_score_correction|expert)_bias (eg e) => (e_score_correction|expert)_bias rows"),
    # norms behind the branches
    mutant("olmo2", "rotated behind the branches' norms", "res", "residual res: SignedPerm => residual res: O", "diag(res) => res", "diag(res nf) => (res nf)"),
    mutant("olmo2", "heads without their gains", "kv", "(kv g c pair t) if => rows if", "(kv c pair t') if => rows if", "space t as qk: Scale[l, kv, pair] if not shared => "),
    mutant("olmo3", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant("exaone4", "gains not dual", "t", "(c pair t') if => (c pair t) if"),
    # LayerNorm decoders
    mutant("nemotron", "gains stored as they act", "n1", "diag(res n1) - 1 => diag(res n1)"),
    mutant("nemotron", "a factor through a square", "u", ' if hidden_act == "relu" => '),
    mutant("gptj", "half-split pairs", "c", "[pair c | rest] => [c pair | rest]", "[pair c' | rest'] => [c' pair | rest']"),
    mutant("gptj", "MLP past the shared norm", "n1", "fc_in.weight (ff u) (res n1)' => fc_in.weight (ff u) res'"),
    mutant("gpt_neo", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("gpt_neo", "ReLU's scale under GELU", "u", ' if activation_function == "relu" => '),
    mutant("gpt_bigcode", "value before key", "ov", "(kv [g qk | qk' | ov]) => (kv [g qk | ov | qk'])"),
    mutant("gpt_bigcode-heads", "fused block by block", "kv", "(kv [g qk | qk' | ov]) => [kv g qk | kv qk' | kv ov]"),
    mutant("granitemoe", "router forgotten", "e", "router.weight) e (res n2)' => router.weight) rows (res n2)'"),
    mutant("granitemoeshared", "shared gate and up mistaken", "su", "[sff | sff su] => [sff su | sff]"),
    # encoders
    mutant("mpnet", "heads per layer under one table", "h", "space h: Perm\n => space h: Perm[l]\n", "attention_bias.weight bucket h => attention_bias.weight bucket heads"),
    mutant("mpnet", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant("esm", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("esm-rotary", "interleaved pairs", "c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')"),
    mutant("esm-rotary", "key bias under rotary positions", "kb", "key.bias if not turned => key.bias"),
    # towers that merge patches
    mutant("qwen2_vl", "patches fast in the projector", "vision_res", "(merge res nf)' => (res nf merge)'", part="qwen2_vl_vision"),
    mutant("qwen2_vl", "any matrix on a rotated pair", "vision_c", "space c as qk: Complex => space c as qk: GL", part="qwen2_vl_vision"),
    mutant("qwen2_5_vl", "gate scaled", "vision_u", "gate_proj.weight ff => gate_proj.weight (ff u)", part="qwen2_5_vl_vision"),
    mutant("qwen3_vl", "a deep projector reads other coordinates", "vres", "mlp.0).weight deep (merge vres)' => mlp.0).weight deep (merge other)", "size deep => size other = vres\nsize deep"),
    mutant("qwen3_vl", "a deep projector writes other coordinates", "res", "mlp.2).weight res deep' => mlp.2).weight other deep'"),
    mutant("mistral3", "patches slow in the merging map", "vision_res", "(vision_res np merge)' => (merge vision_res np)'"),
    mutant("mistral3", "merged past the gain", "np", "(vision_res np merge)' => (vision_res merge)'"),
    mutant("mistral3", "interleaved pairs", "vision_c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')", part="pixtral"),
    mutant("mistral3", "the tower's gate scaled", "vision_u", "(gate_proj|w1).weight ff => (gate_proj|w1).weight (ff u)", part="pixtral"),
    mutant("internvl", "patches fast in the projector", "vision_res", "(merge vision_res)' => (vision_res merge)'"),
    mutant("internvl", "hidden bias forgotten", "project", "linear_1.bias (project pu) => linear_1.bias rows"),
    mutant("internvl", "layer scale not divided", "vision_s1", "lambda_1 diag(res s1') => lambda_1 res", part="internvl_vision"),
    mutant("internvl-normed", "any matrix under norms", "vision_qk", "GL[l, h] if not normed => GL[l, h]", "space qk: Perm[l, h] if normed => ", "space sg as qk: Sign[l, h, qk] if normed => ", "space t as qk: Scale[l, h, qk] if normed => ", "(h qk t) => rows", "(h qk' t') => rows", part="internvl_vision"),
    mutant("internvl-normed", "gains not dual", "vision_t", "(h qk' t') => (h qk' t)", part="internvl_vision"),
]  # fmt: skip
