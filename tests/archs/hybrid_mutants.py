"""Plausible wrong specs of hybrids: a state space read or written past the stream, and what is special of their attention."""

from __future__ import annotations

from archs.mutants import mutant

HYBRID_MUTANTS = [
    # a state space's side of the stream
    mutant("jamba", "the state space reads other coordinates", "res", "mamba.in_proj.weight inside (res n1)' => mamba.in_proj.weight inside other"),
    mutant("jamba", "the state space past the gain", "n1", "mamba.in_proj.weight inside (res n1)' => mamba.in_proj.weight inside res'"),
    mutant("jamba", "router forgotten", "e", "router.weight e (res n2)' => router.weight rows (res n2)'"),
    mutant("bamba", "the state space writes other coordinates", "res", "mamba.out_proj.weight res channel => mamba.out_proj.weight other channel"),
    mutant("bamba", "rest before the rotated part", "rest", "[c pair | rest] => [rest | c pair]", "[c' pair | rest'] => [rest' | c' pair]"),
    mutant("falcon_h1", "the state space past the shared gain", "n1", "mamba.in_proj.weight inside (res n1)' => mamba.in_proj.weight inside res'"),
    mutant("falcon_h1", "any matrix on a rotated pair", "c", "space c as qk: Complex => size c = 2\nspace c as qk: GL"),
    mutant("granitemoehybrid", "the state space in coordinates of its own", "res", "mamba.in_proj.weight inside (res n1)' => mamba.in_proj.weight inside (other n1)'", "mamba.out_proj.weight res channel => mamba.out_proj.weight other channel", "size vocab => size other = res\nsize vocab", "residual n1: Scale[l, res]\n => ", "diag(res n1) => diag(res)", "(res n1)' => res'", "(other n1)' => other'"),
    mutant("granitemoehybrid", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("granitemoehybrid-dense", "any matrix under rotary positions", "qk", "size turned = 1 if model_type != \"granitemoehybrid\" or position_embedding_type == \"rope\" else 0 => size turned = 0"),
    mutant("lfm2", "the convolution writes other coordinates", "res", "conv.out_proj.weight res channel => conv.out_proj.weight other channel"),
    mutant("lfm2", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("lfm2_moe", "the router's bias forgotten", "e", "feed_forward.expert_bias e => feed_forward.expert_bias rows"),
    mutant("qwen3_next", "values without their gates", "ov", "[c pair sg | rest rs | ov] => [c pair sg | rest rs | gates]", "size vocab => size gates = ov\nsize vocab"),
    mutant("qwen3_next", "any matrix on gated values", "ov", "space ov: Perm[l, kv] => space ov: GL[l, kv]", "rest rs | ov] => rest rs | gates]", "size vocab => size gates = ov\nsize vocab"),
    mutant("qwen3_next", "gates before queries", "rs", "[c pair sg | rest rs | ov] => [ov | c pair sg | rest rs]"),
    mutant("qwen3_next", "the delta rule past the gain", "n1", "in_proj_ba.weight inside (res n1)' => in_proj_ba.weight inside res'"),
    mutant("nemotron_h", "experts leave their group", "e", "space eg as expert: Perm[l] if eg > 1 => ", "Perm[l, eg] if eg > 1 => Perm[l] if eg > 1", "size eg = n_group or 1 => size eg = 1", "eg > 1 => eg > 2", "eg == 1 => eg < 2"),
    mutant("nemotron_h", "the state space past the gain", "n1", "mixer.in_proj.weight inside (res n1)' => mixer.in_proj.weight inside res'"),
    mutant("nemotron_h", "a factor through a square", "du", "space dff as ff: Perm[l] => space dff as ff: Perm[l]\nspace du as scale: PositiveScale[l, dff]", "up_proj.weight dff (res n1)' => up_proj.weight (dff du) (res n1)'", "down_proj.weight res dff' => down_proj.weight res (dff du')"),
    mutant("zamba2", "the embeddings' half forgotten", "res", "[res | res]' => [res' | other]", "size vocab => size other = res\nsize vocab"),
    mutant("zamba2", "low-rank changes of gate and up forgotten", "ff", "adapter_list.{a}.1.weight [ff | ff u] rank => adapter_list.{a}.1.weight rows rank"),
    mutant("mamba", "the state space reads other coordinates", "res", "in_proj.weight inside (res n1)' => in_proj.weight inside (other n1)'", "size vocab => size other = res\nsize vocab", "residual n1: Scale[l, res]\n => ", "diag(res n1) => diag(res)", "(other n1)' => other'"),
    mutant("mamba", "the last gain in the tied head", "nf", "(res nf)' = embeddings.weight => (res nf)'"),
    mutant("mamba2", "the state space past the gain", "n1", "in_proj.weight inside (res n1)' => in_proj.weight inside res'"),
    mutant("mamba2", "channels behind a norm over groups", "inside", "in_proj.weight inside (res n1)' => in_proj.weight [inside | rows] (res n1)'", "out_proj.weight res channel => out_proj.weight res inside'", "fixed layers.{l}.mixer.: => fixed layers.{l}.mixer.A_log:", "size vocab => size inside = tensors[\"layers.0.mixer.out_proj.weight\"][1]\nsize rows = tensors[\"layers.0.mixer.in_proj.weight\"][0] - inside\nsize vocab", "residual nf => space inside: Perm[l]\nresidual nf"),
]  # fmt: skip
