"""Streams of `toy_switched`, what its toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from archs.mutants import mutant

SWITCHED_STREAMS: dict[str, dict[str, str]] = {
    "phi-normed": {"res": "OFixingOnes"},
    "falcon-slopes": {"res": "OFixingOnes"},
    "zamba2-adapted": {"res": "SignedPerm"},
    "dpt-labels": {"vision_res": "Perm"},
    **{name: {f"res{s}": "Perm" for s in range(3)} for name in ("swin-three", "swinv2-three")},
    "swin-one": {"res0": "Perm"},
    "hiera-three": {"res0": "OFixingOnes", "res1": "Perm", "res2": "Perm"},
    "florence2-three": {"res": "Perm", "d0": "Perm", "d1": "Perm"},
}
SWITCHED_IDLE: set[tuple[str, str]] = set()
SWITCHED_MUTANTS = [
    mutant("phi-normed", "the norms' gains not dual", "t", "[c pair t' | => [c pair t |"),
    mutant("phi-normed", "the keys' norm forgets the rest", "rest", "k_layernorm.weight [c pair t' | rest rt'] => k_layernorm.weight [c pair t' | other]", "size rest => size other = head - 2 * pair\nsize rest"),
    mutant("falcon-slopes", "heads permuted under ALiBi", "kv", "space kv as h: Perm[l] if not alibi => space kv as h: Perm[l]"),
    mutant("falcon-slopes", "a matrix for every query", "qk", "(kv [g qk | qk' | ov]) (res n1)' if alibi => (kv [g qk | other | ov]) (res n1)' if alibi", "(kv [g qk | qk' | ov]) if alibi => (kv [g qk | other | ov]) if alibi", "size qk => size other = head\nsize qk"),
    mutant("roformer-turned", "any matrix on values that turn", "ov", "space ov: GL[l, h] if not rotary_value => space ov: GL[l, h]", "(h pair vc) res' if => (h ov) res' if", "value.bias (h pair vc) if => value.bias (h ov) if", "space vc as ov: Complex[l, h, pair] if rotary_value\n => ", "res (h pair vc') if => res (h ov') if"),
    mutant("roformer-turned", "the bias of values that turn is free", "vb", "via encoder.layer.{l}.attention.output.dense.weight if not rotary_value => via encoder.layer.{l}.attention.output.dense.weight"),
    mutant("zamba2-adapted", "low-rank changes of queries forgotten", "c", "linear_q_adapter_list.{a}.1.weight (kv g c pair) rank => linear_q_adapter_list.{a}.1.weight rows rank"),
    mutant("zamba2-adapted", "low-rank changes past the stream", "res", "linear_v_adapter_list.{a}.0.weight rank [res | res]' => linear_v_adapter_list.{a}.0.weight rank other"),
    mutant("prophetnet-decoder", "heads permuted in the streams beside the main one", "dh", "space dqk as qk => space dh as h: Perm[l]\nspace dqk as qk"),
    mutant("prophetnet-decoder", "embeddings in other coordinates", "res", "\nword_embeddings.weight vocab res => \nword_embeddings.weight vocab other"),
    mutant("bigbird_pegasus-decoder", "the last gain past the head", "dnf", "vocab (res dnf)' = decoder => vocab res' = decoder"),
    mutant("swin-three", "the last norm past the last stage", "nf", "labels (res2 nf)' if => labels res2' if"),
    mutant("swinv2-three", "biases of positions forgotten", "h2", "continuous_position_bias_mlp.2.weight h2 => continuous_position_bias_mlp.2.weight rows"),
    mutant("hiera-three", "a stage's first map past the gain in front of it", "m1", "proj.weight res2 (res1 m1)' => proj.weight res2 res1'"),
    mutant("florence2-three", "computed positions permuted", "d2", "residual d2: Perm if vision_config.depths[3] => residual d2: Perm"),
]  # fmt: skip
