"""Plausible wrong specs of the architectures in `toy_models`, which the law must refute (see `test_mutants`)."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A wrong spec: the toy that refutes it, what is wrong, the space that shows it, and the edits that make it."""

    toy: str
    wrong: str
    space: str
    edits: tuple[tuple[str, str], ...]
    part: str | None = None
    """The model type whose text is edited, where the toy's own text includes it."""


def mutant(toy: str, wrong: str, space: str, *edits: str, part: str | None = None) -> Mutant:
    """A mutant from edits written ``old => new``."""
    pairs = [edit.partition(" => ") for edit in edits]
    return Mutant(toy, wrong, space, tuple((old, new) for old, _, new in pairs), part)


NEOX = "(h [c pair | rest | c' pair | rest' | ov])"
VECTORS = (
    "diag(res) - 1 => res",
    "diag(res n1) - 1 => (res n1)",
    "diag(res n2) - 1 => (res n2)",
    "diag(res nf) - 1 => (res nf)",
)
COMPLEX_UNDER_NORMS = (
    "size sg = 1\n => ",
    "size c = 2\n => ",
    "space sg as qk: Sign[l, kv, pair] => space c as qk: Complex[l, kv, pair]",
    "_norm.weight (c pair) => _norm.weight gain",
    "(kv g c pair sg) => (kv g c pair)",
    "(kv c pair sg') => (kv c' pair)",
)
SIGNS_UNDER_CENTRING = (
    "space t as qk => size sg = 1\nspace sg as qk: Sign[l, kv, pair]\nspace t as qk",
    "weight (kv g pair c) => weight (kv g pair c sg)",
    "weight (kv pair c') => weight (kv pair c' sg)",
)
FIRST_WITHOUT_NORM = (
    "residual n2 => residual n1: Scale[l, res]\nresidual n2",
    "attn_norm.weight diag(res) => attn_norm.weight diag(res n1)",
    "Wqkv.weight [h c pair | h c' pair | h ov] res' => Wqkv.weight [h c pair | h c' pair | h ov] (res n1)'",
)
KEY_BIAS = "shift vb:  => shift kb: layers.{l}.self_attn.k_proj.bias\nshift vb: "
NOT_SCALED = "size gains = 0 if layer_norm_elementwise_affine == False or do_layer_norm_before == False else 1"
FAMILY_MUTANTS = [
    # gpt_neox
    mutant("gpt_neox", "fused block by block", "h", f"{NEOX} => [h c pair | h rest | h c' pair | h rest' | h ov]"),
    mutant(
        "gpt_neox", "rest before the rotated part", "rest",
        f"{NEOX} => (h [rest | c pair | rest' | c' pair | ov])",
    ),
    mutant("gpt_neox", "GL on a rotated pair", "c", "space c as qk: Complex => size c = 2\nspace c as qk: GL"),
    mutant("gpt_neox", "key bias free where it is rotated", "kb", "bias#3 => bias#2"),
    mutant("gpt_neox", "ReLU's scale under GELU", "u", ' if hidden_act == "relu" => '),
    # opt
    mutant("opt", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("opt", "query bias forgotten", "qk", "q_proj.bias (h qk) => q_proj.bias rows"),
    mutant("opt", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("opt-projected", "post-LN gains scaled", "n1", f"{NOT_SCALED} => size gains = 1"),
    # gemma
    mutant("gemma", "gains stored as they act", "n1", "diag(res n1) - 1 => diag(res n1)"),
    mutant("gemma-untied", "the last gain stored as it acts", "nf", "diag(res nf) - 1 => diag(res nf)"),
    mutant("gemma", "interleaved pairs", "c", "(kv g c pair) => (kv g pair c)", "(kv c' pair) => (kv pair c')"),
    mutant("gemma2", "rotated behind the branches' norms", "res", "res: SignedPerm => res: O", *VECTORS),
    # gemma3
    mutant(
        "gemma3_text", "a factor in gains of 1 + w", "t",
        "space ov: => space t as qk: Scale[l, pair]\nspace ov:",
        "q_norm.weight (c pair) => q_norm.weight (c pair t)", "k_norm.weight (c pair) => k_norm.weight (c pair t')",
    ),
    mutant("gemma3_text", "rotations despite q/k norms", "c", *COMPLEX_UNDER_NORMS),
    mutant("gemma3_text", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    # phi
    mutant("phi", "key bias free where it is rotated", "kb", "bias#1 if => bias#0 if"),
    mutant("phi", "MLP past the shared norm", "n1", "fc1.weight (ff u) (res n1)' => fc1.weight (ff u) res'"),
    mutant(
        "phi", "rest before the rotated part", "rest",
        "[c pair | rest] => [rest | c pair]",
        "[c' pair | rest'] => [rest' | c' pair]",
    ),
    # phi3
    mutant("phi3", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant(
        "phi3", "fused group by group", "kv",
        "[kv g [c pair | rest] | kv [c' pair | rest'] | kv ov] => (kv [g c pair | c' pair | ov])",
    ),
    mutant(
        "phi3-partial", "all coordinates rotated", "c",
        "(rope_parameters.partial_rotary_factor or partial_rotary_factor or 1) => 1",
    ),
    # falcon
    mutant(
        "falcon-rw", "heads permuted under ALiBi", "kv",
        "space kv as h: Perm[l] if not alibi => space kv as h: Perm[l]",
    ),
    mutant("falcon", "MLP past the shared norm", "n1", "(ff u) (res n1)' if => (ff u) res' if"),
    mutant(
        "falcon-grouped", "fused block by block", "kv",
        "(kv [g c pair | c' pair | ov]) => [kv g c pair | kv c' pair | kv ov]",
    ),
    mutant("falcon-grouped", "key bias under rotary positions", "kb", "bias#1 if alibi => bias#1"),
    # bloom, mpt
    mutant("bloom", "heads permuted under ALiBi", "h", "space qk: => space h: Perm[l]\nspace qk:"),
    mutant("bloom", "fused block by block", "qk", "(h [qk | qk' | ov]) => [h qk | h qk' | h ov]"),
    mutant("mpt", "heads permuted under ALiBi", "h", "space qk: => space h: Perm[l]\nspace qk:"),
    mutant("mpt", "key not dual", "qk", "| h qk' | => | h qk |"),
    # cohere
    mutant("cohere", "half-split pairs", "c", "(kv g pair c) => (kv g c pair)", "(kv pair c') => (kv c' pair)"),
    mutant("cohere", "MLP past the shared norm", "n1", "gate_proj.weight ff (res n1)' => gate_proj.weight ff res'"),
    mutant("cohere2", "groups fast", "kv", "q_proj.weight (kv g pair c) => q_proj.weight (g kv pair c)"),
    mutant("cohere-normed", "signs under a norm that centres", "sg", *SIGNS_UNDER_CENTRING),
    mutant("cohere-normed", "gains not dual", "t", "(pair c t') => (pair c t)"),
    mutant(
        "cohere-normed", "complex numbers despite q/k norms", "c",
        "pair] if not use_qk_norm => pair]",
        "size c = 2 => ",
    ),
    # starcoder2, stablelm
    mutant("starcoder2", "key bias under rotary positions", "kb", KEY_BIAS),
    mutant("starcoder2", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant("stablelm", "key bias free where it is rotated", "kb", "bias#1 if => bias#0 if"),
    mutant(
        "stablelm-parallel", "MLP past the shared norm", "n1",
        "up_proj.weight (ff u) (res n1)' => up_proj.weight (ff u) res'",
    ),
    # experts
    mutant("qwen2_moe", "router forgotten", "e", "gate.weight e (res n2)' => gate.weight rows (res n2)'"),
    mutant("qwen2_moe", "shared expert's gate past the norm", "n2", "1 (res n2)' => 1 res'"),
    mutant(
        "qwen2_moe", "scale on gate and up", "su",
        "shared_expert.gate_proj.weight sff => shared_expert.gate_proj.weight (sff su)",
    ),
    mutant("qwen3_moe", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("qwen3_moe", "dense gate forgotten", "dff", "mlp.gate_proj.weight dff => mlp.gate_proj.weight rows"),
    # encoders
    mutant(
        "electra", "narrow norm not permuted", "emb",
        "LayerNorm.(weight|gamma) emb => LayerNorm.(weight|gamma) other",
    ),
    mutant("electra", "projection reads another order", "emb", "res emb' => res other"),
    mutant("electra-wide", "rotated post-LN stream", "res", "residual res: Perm => residual res: O"),
    mutant(
        "albert", "the way back in another order", "emb",
        "predictions.dense.bias emb => predictions.dense.bias other",
    ),
    mutant("albert-groups", "query bias forgotten", "qk", "query.bias (h qk) => query.bias rows"),
    mutant("modernbert", "a scale where the first layer has no norm", "n1", *FIRST_WITHOUT_NORM),
    mutant("modernbert", "input and gate mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    # encoders with decoders
    mutant("bart", "cross-attention key not dual", "xqk", "(xh xqk') => (xh xqk)"),
    mutant(
        "bart", "post-LN gains scaled", "en1",
        "size en1 = 1\n => residual en1: Scale[l, res]\n",
    ),
    mutant(
        "mbart", "cross-attention past the encoder's last gain", "enf",
        "(xh xqk') (res enf)' => (xh xqk') res'",
    ),
    mutant(
        "marian", "permuted under sinusoids", "res",
        "space eh as h: => residual res: Perm\nspace eh as h:",
    ),
    mutant(
        "whisper", "channels of the convolutions forgotten", "channel",
        "res_in channel' width => res_in other width",
    ),
    mutant(
        "whisper", "cross-attention value not read in the encoder's stream", "res_in",
        "(xh xov) (res_in enf)' => (xh xov) rows",
    ),
]  # fmt: skip
