"""Plausible wrong specs of the architectures in `toy_gemmas`, which the law must refute (see `test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

EYES, EARS = "gemma4_vision", "gemma4_audio"
SPOKEN = "gemma3n_audio"
GEMMA_MUTANTS = [
    # t5gemma
    mutant("t5gemma", "cross-attention reads the decoder's gain past the encoder's", "enf", "k_proj.weight (xkv xqk') (eres enf)' => k_proj.weight (xkv xqk') eres'"),
    mutant("t5gemma", "any matrix under rotary positions", "ec", "space ec as qk: Complex[l, ekv, epair] => space ec as qk: GL[l, ekv, epair]"),
    mutant("t5gemma", "key not dual", "xqk", "(xkv xqk') => (xkv xqk)"),
    mutant("t5gemma", "key bias free under caps", "xkb", "shift xvb: => shift xkb: decoder.layers.{l}.cross_attn.k_proj.bias\nshift xvb:"),
    mutant("t5gemma", "gains stored as they act", "dn2", "diag(dres dn2) - 1 => diag(dres dn2)"),
    mutant("t5gemma", "the encoder read in another order", "eres", "v_proj.weight (xkv xov) (eres enf)' => v_proj.weight (xkv xov) other"),
    mutant("t5gemma-tied", "groups fast", "xkv", "(xkv xg xqk) => (xg xkv xqk)", "(xkv xg xov') => (xg xkv xov')"),
    mutant("t5gemma-labels", "labels read in another order", "dres", "labels (dres dnf)' => labels other", "residual dnf: Scale[dres]\n => ", "diag(dres dnf) => diag(dres)", "vocab (dres dnf)' => vocab dres'"),
    # gemma3n
    mutant("gemma3n", "tokens of sounds in other coordinates", "audio_res", "embed_audio.embedding.weight token audio_res => embed_audio.embedding.weight token elsewhere"),
    mutant("gemma3n", "sounds read in another order", "audio_res", "res audio_res' => res elsewhere"),
    mutant("gemma3n", "one gain folded where two are read", "ns", "embed_vision.embedding.weight => residual ns: Scale[audio_res]\nembed_vision.embedding.weight",
           "soft_embedding_norm.weight diag(audio_res) => soft_embedding_norm.weight diag(audio_res ns)", "res audio_res' => res (audio_res ns)'"),
    mutant("gemma3n-tied", "patches written in other coordinates", "res", "embed_vision.embedding_projection.weight res piece => embed_vision.embedding_projection.weight rows piece"),
    mutant("gemma3n", "positions of keys forgotten", "audio_t", "pos_proj.weight (h qk t') => pos_proj.weight (h qk)", part=SPOKEN),
    mutant("gemma3n", "gate and value mistaken", "audio_u", "[channel u | channel] => [channel | channel u]", part=SPOKEN),
    mutant("gemma3n", "channels slow", "audio_c1", "(frequency c1 u1)' => (c1 u1 frequency)'", part=SPOKEN),
    mutant("gemma3n", "negative factor through ReLU", "audio_u1", "u1 as scale: PositiveScale => u1 as scale: Scale", part=SPOKEN),
    mutant("gemma3n", "the norm at a layer's end forgotten", "audio_res", "{l}.norm.weight diag(res) => {l}.norm.weight rows", part=SPOKEN),
    # gemma4
    mutant("gemma4", "the tower's coordinates read in another order", "vision_res", "projection.weight res vision_res' => projection.weight res other"),
    mutant("gemma4", "patches written in other coordinates", "res", "res vision_res' => rows vision_res'"),
    mutant("gemma4-clipped", "sounds not turned back", "audio_out", "res audio_out' => res columns"),
    mutant("gemma4-routed", "patches written in other coordinates", "res", "res vision_res' => rows vision_res'"),
    # the language model
    mutant("gemma4-clipped", "gate of a wide layer forgotten", "wff", ":depth-wide..depth}.mlp.gate_proj.weight wff => :depth-wide..depth}.mlp.gate_proj.weight rows", part="gemma4_text"),
    mutant("gemma4-clipped", "a factor on a wide layer's gate", "wu", "mlp.gate_proj.weight wff => mlp.gate_proj.weight (wff wu)", part="gemma4_text"),
    # what sees
    mutant("gemma4", "one part for rows and columns", "vision_sg", "(kv g part c pair sg) => (kv g c part pair sg)", "(kv part c pair sg) => (kv c part pair sg)", part=EYES),
    mutant("gemma4", "interleaved pairs", "vision_t", "(part c pair t) => (part pair c t)", "(part c pair t') => (part pair c t')", part=EYES),
    mutant("gemma4", "gains not dual", "vision_t", "(part c pair t') => (part c pair t)", part=EYES),
    mutant("gemma4", "any matrix behind the norm of values", "vision_ov", "space ov: O[l, kv] => space ov: GL[l, kv]", part=EYES),
    mutant("gemma4", "groups fast", "vision_kv", "(kv g part => (g kv part", "(kv g ov') => (g kv ov')", part=EYES),
    mutant("gemma4", "the shift behind the tower forgotten", "vision_res", "std_bias res => std_bias rows", part=EYES),
    mutant("gemma4", "positions forgotten", "vision_res", "2 pos res => 2 pos other", part=EYES),
    mutant("gemma4-clipped", "signs past bounds", "vision_res", "res: Perm if clip => res: SignedPerm if clip", part=EYES),
    mutant("gemma4-clipped", "signs of keys past bounds", "vision_sg", "part, pair] if not clip => part, pair]", part=EYES),
    mutant("gemma4-clipped", "gains past bounds", "vision_n1", "n1: Scale[l, res] if not clip => n1: Scale[l, res]", part=EYES),
    mutant("gemma4-clipped", "rotations past bounds", "vision_ov", "ov: Perm[l, kv] if clip => ov: O[l, kv] if clip", part=EYES),
    mutant("gemma4-clipped", "factors past bounds", "vision_u", "Scale[l, ff] if not clip => Scale[l, ff]", part=EYES),
    # what hears
    mutant("gemma4", "positions of keys forgotten", "audio_t", "relative_k_proj.weight (h qk t') => relative_k_proj.weight (h qk)", part=EARS),
    mutant("gemma4", "keys of positions in another order", "audio_h", "relative_k_proj.weight (h qk t') => relative_k_proj.weight rows", part=EARS),
    mutant(
        "gemma4", "any matrix under factors per coordinate", "audio_qk", "space t as qk: Scale[l, h, qk] if not clip => space qk: GL[l, h]",
        "(h qk t') => (h qk')", "(h qk t) => (h qk)", "per_dim_scale qk => per_dim_scale rows", part=EARS,
    ),
    mutant("gemma4", "gate and value mistaken", "audio_u", "[channel u | channel] => [channel | channel u]", part=EARS),
    mutant("gemma4", "the norm of channels forgotten", "audio_channel", "conv_norm.weight channel => conv_norm.weight rows", part=EARS),
    mutant("gemma4", "channels slow", "audio_c1", "(frequency c1 u1)' => (c1 u1 frequency)'", part=EARS),
    mutant("gemma4", "negative factor through ReLU", "audio_u0", "u0 as scale: PositiveScale => u0 as scale: Scale", part=EARS),
    mutant("gemma4", "the norm at a layer's end forgotten", "audio_res", "norm_out.weight diag(res) => norm_out.weight rows", part=EARS),
    mutant("gemma4-clipped", "signs past bounds", "audio_res", "res: Perm if clip => res: SignedPerm if clip", part=EARS),
    mutant("gemma4-clipped", "any matrix past bounds", "audio_ov", "ov: Perm[l, h] if clip => ov: GL[l, h] if clip", part=EARS),
    mutant("gemma4-clipped", "factors past bounds", "audio_t", "Scale[l, h, qk] if not clip => Scale[l, h, qk]", part=EARS),
    # gemma4_unified
    mutant("gemma4_unified", "positions forgotten", "patch", "pos_embedding pos 2 patch => pos_embedding pos 2 other", "returns patch res => returns res"),
    mutant("gemma4_unified", "the norm's bias forgotten", "patch", "pos_norm.bias patch => pos_norm.bias rows", "returns patch res => returns res"),
    mutant("gemma4_unified", "signs under norms that centre", "patch", "patch as ff: Perm => patch as ff: SignedPerm", "returns patch res => returns res"),
    mutant("gemma4_unified", "sounds written in other coordinates", "res", "res frame => rows frame"),
]  # fmt: skip
