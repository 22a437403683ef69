"""Plausible wrong specs of hybrids: a state space read or written past the stream, and what is special of their
attention."""

from __future__ import annotations

from archs.mutants import mutant

HYBRID_MUTANTS = [
    # a state space's side of the stream
    mutant("jamba", "the state space reads other coordinates", "res", "mamba.in_proj.weight [ch | ch] (res n1)' => mamba.in_proj.weight [ch | ch] other"),
    mutant("jamba", "the state space past the gain", "n1", "mamba.in_proj.weight [ch | ch] (res n1)' => mamba.in_proj.weight [ch | ch] res'"),
    mutant("jamba", "the gain of states read twice", "su", "c_layernorm.weight (st cs su') => c_layernorm.weight (st cs su)"),
    mutant("jamba", "steps past their norm", "dg", "dt_layernorm.weight (dt dg) => dt_layernorm.weight dt", "dt_proj.weight ch (dt ds dg)' => dt_proj.weight ch (dt ds)'", "mamba.x_proj.weight [dt ds => mamba.x_proj.weight [dt ds dg"),
    mutant("jamba", "router forgotten", "e", "router.weight e (res n2)' => router.weight rows (res n2)'"),
    mutant("bamba", "the state space writes other coordinates", "res", "mamba.out_proj.weight res (mg => mamba.out_proj.weight other (mg"),
    mutant("bamba", "states of a group turned", "ms", "space ms as qk: Perm => space ms as qk: O"),
    mutant("bamba", "heads leave their group", "mh", "mamba_n_groups or 1 => 1", "[mg mh mp | mg mh mp | mg ms | mg ms | mg mh] => [mg mh mp | mg mh mp | two ms | two ms | mg mh]", "[mg mh mp | mg ms | mg ms] => [mg mh mp | two ms | two ms]", "space ms as qk: Perm[l, mg]\n => ", "size vocab => size two = 2\nsize vocab"),
    mutant("bamba", "rest before the rotated part", "rest", "[c pair | rest] => [rest | c pair]", "[c' pair | rest'] => [rest' | c' pair]"),
    mutant("falcon_h1", "the state space past the shared gain", "n1", "mamba.in_proj.weight [mg mh mp | mg mh mp | mg ms | mg ms | mg mh] (res n1)' => mamba.in_proj.weight [mg mh mp | mg mh mp | mg ms | mg ms | mg mh] res'"),
    mutant("falcon_h1", "a gain where there is no norm", "mu", " if mamba_rms_norm => "),
    mutant("falcon_h1", "any matrix on a rotated pair", "c", "space c as qk: Complex => size c = 2\nspace c as qk: GL"),
    mutant("granitemoehybrid", "the state space past the gain", "n1", "mg ms | mg mh] (res n1)' => mg ms | mg mh] res'"),
    mutant("granitemoehybrid", "gates of other channels", "mp", "mamba.in_proj.weight [mg mh mp | => mamba.in_proj.weight [mg mh channel |", "size vocab => size channel = mp\nsize vocab"),
    mutant("granitemoehybrid", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("granitemoehybrid-dense", "any matrix under rotary positions", "qk", "size turned = 1 if position_embedding_type == \"rope\" else 0 => size turned = 0"),
    mutant("lfm2", "the convolution writes other coordinates", "res", "conv.out_proj.weight res (ch => conv.out_proj.weight other (ch"),
    mutant("lfm2", "a gate past its convolution", "cb", "(ch cb' cc' cx' co') => (ch cc' cx' co')"),
    mutant("lfm2", "channels of one gate alone", "ch", "[ch cb | ch cc | ch cx] => [ch cb | other cc | ch cx]", "size vocab => size other = ch\nsize vocab"),
    mutant("lfm2", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("lfm2_moe", "the router's bias forgotten", "e", "feed_forward.expert_bias e => feed_forward.expert_bias rows"),
    mutant("qwen3_next", "values without their gates", "ov", "[c pair sg | rest rs | ov] => [c pair sg | rest rs | gates]", "size vocab => size gates = ov\nsize vocab"),
    mutant("qwen3_next", "any matrix on gated values", "ov", "space ov: Perm[l, kv] => space ov: GL[l, kv]", "rest rs | ov] => rest rs | gates]", "size vocab => size gates = ov\nsize vocab"),
    mutant("qwen3_next", "gates before queries", "rs", "[c pair sg | rest rs | ov] => [ov | c pair sg | rest rs]"),
    mutant("qwen3_next", "the delta rule past the gain", "n1", "in_proj_ba.weight (dh [dg | dg]) (res n1)' => in_proj_ba.weight (dh [dg | dg]) res'"),
    mutant("qwen3_next", "values of each head for themselves", "dv", "space dv as ov: Perm[l] => space dv as ov: Perm[l, dh]", "space ds as ov: Scale[l, dv]\n => ", "norm.weight (dv ds) => norm.weight value", "(dh dg dv' ds') => (dh dg dv')"),
    mutant("qwen3_next", "keys turned behind their convolution", "dk", "space dk as qk: Perm => space dk as qk: O"),
    mutant("qwen3_next", "decays of other heads", "dg", "(dh [dg | dg]) => (dh [dg | other])", "size vocab => size other = dg\nsize vocab"),
    mutant("kimi_linear", "fading of other keys", "dk", "dt_bias (dh dk) => dt_bias (dh other)", "size vocab => size other = dk\nsize vocab"),
    mutant("olmo_hybrid", "the gain of one value for all heads", "ds", "(dh dg dv' ds') => (dh dg dv')"),
    mutant("nemotron_h", "experts leave their group", "e", "space eg as expert: Perm[l] if eg > 1 => ", "Perm[l, eg] if eg > 1 => Perm[l] if eg > 1", "size eg = n_group or 1 => size eg = 1", "eg > 1 => eg > 2", "eg == 1 => eg < 2"),
    mutant("nemotron_h", "the state space past the gain", "n1", "mg ms | mg mh] (res n1)' => mg ms | mg mh] res'"),
    mutant("nemotron_h", "a convolution of other states", "ms", "[mg mh mp | mg ms | mg ms] 1 width => [mg mh mp | mg ms | mg other] 1 width", "size vocab => size other = ms\nsize vocab"),
    mutant("nemotron_h", "a factor through a square", "du", "space dff as ff: Perm[l] => space dff as ff: Perm[l]\nspace du as scale: PositiveScale[l, dff]", "up_proj.weight dff (res n1)' => up_proj.weight (dff du) (res n1)'", "down_proj.weight res dff' => down_proj.weight res (dff du')"),
    mutant("zamba2", "the embeddings' half forgotten", "res", "[res | res]' => [res' | other]", "size vocab => size other = res\nsize vocab"),
    mutant("zamba2", "low-rank changes of gate and up forgotten", "ff", "adapter_list.{a}.1.weight [ff | ff u] rank => adapter_list.{a}.1.weight rows rank"),
    mutant("mamba", "the state space reads other coordinates", "res", "in_proj.weight [ch | ch] (res n1)' => in_proj.weight [ch | ch] (other n1)'", "size vocab => size other = res\nsize vocab", "residual n1: Scale[l, res]\n => ", "diag(res n1) => diag(res)", "(other n1)' => other'"),
    mutant("mamba", "states turned under their decays", "st", "space st as qk: Perm => space st as qk: GL", "space su as qk: Scale[l, st]\n => ", "x_proj.weight [dt | st su | st su'] => x_proj.weight [dt | st | st']"),
    mutant("mamba", "one factor for both sides of a state", "su", "[dt | st su | st su'] => [dt | st su | st su]"),
    mutant("falcon_mamba", "any matrix behind a norm", "dt", "space dt as latent: O => space dt as latent: GL"),
    mutant("mamba", "the last gain in the tied head", "nf", "(res nf)' = embeddings.weight => (res nf)'"),
    mutant("mamba2", "the state space past the gain", "n1", "mg ms | mg mh] (res n1)' => mg ms | mg mh] res'"),
    mutant("mamba2", "channels past the gain of their norm", "mp", "norm.weight (mg mh mp mu) => norm.weight channel", "(mg mh mp mu') => (mg mh mp)", "space mu as scale: Scale[l, mg, mh, mp]\n => "),
]  # fmt: skip
