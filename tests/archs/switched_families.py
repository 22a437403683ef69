"""Streams of `toy_switched`, what its toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from archs.mutants import mutant

SWITCHED_STREAMS: dict[str, dict[str, str]] = {
    "phi-normed": {"res": "OFixingOnes"},
    "falcon-slopes": {"res": "OFixingOnes"},
    "zamba2-adapted": {"res": "SignedPerm"},
    "bigbird_pegasus-decoder": {"res": "OFixingOnes"},
    "dpt-labels": {"vision_res": "Perm"},
}
SWITCHED_IDLE: set[tuple[str, str]] = set()
SWITCHED_MUTANTS = [
    mutant("phi-normed", "a complex number under norms", "c", "space t as qk => space c as qk: Complex[l, kv, pair]\nspace t as qk"),
    mutant("phi-normed", "the norms' gains not dual", "t", "[c pair t' | => [c pair t |"),
    mutant("phi-normed", "the rest permuted head by head", "rest", "space rest as qk: Perm[l] if => space rest as qk: Perm[l, kv] if", "k_layernorm.weight [c pair t' | rest rt'] => k_layernorm.weight [c pair t' | other rt']", "k_layernorm.bias [c pair t' | rest rt'] => k_layernorm.bias [c pair t' | other rt']", "q_layernorm.weight [c pair t | rest rt] => q_layernorm.weight [c pair t | other rt]", "q_layernorm.bias [c pair t | rest rt] => q_layernorm.bias [c pair t | other rt]", "space rt as qk: Scale[l, rest] if rest > 0 and qk_layernorm\n => ", "| other rt => | other", "size rest => size other = head - 2 * pair\nsize rest"),
    mutant("falcon-slopes", "heads permuted under ALiBi", "kv", "space kv as h: Perm[l] if not alibi => space kv as h: Perm[l]"),
    mutant("falcon-slopes", "a matrix for every query", "qk", "(kv [g qk | qk' | ov]) (res n1)' if alibi => (kv [g qk | other | ov]) (res n1)' if alibi", "(kv [g qk | qk' | ov]) if alibi => (kv [g qk | other | ov]) if alibi", "size qk => size other = head\nsize qk"),
    mutant("roformer-turned", "any matrix on values that turn", "ov", "space ov: GL[l, h] if not rotary_value => space ov: GL[l, h]", "(h pair vc) res' if => (h ov) res' if", "value.bias (h pair vc) if => value.bias (h ov) if", "res (h pair vc') if => res (h ov') if"),
    mutant("roformer-turned", "the bias of values that turn is free", "vb", "dense.weight if not rotary_value\n\n => dense.weight\n\n"),
    mutant("zamba2-adapted", "low-rank changes of queries forgotten", "c", "linear_q_adapter_list.{a}.1.weight (kv g c pair) rank => linear_q_adapter_list.{a}.1.weight rows rank"),
    mutant("zamba2-adapted", "low-rank changes past the stream", "res", "linear_v_adapter_list.{a}.0.weight rank [res | res]' => linear_v_adapter_list.{a}.0.weight rank other"),
    mutant("prophetnet-decoder", "heads permuted in the streams beside the main one", "dh", "space dqk as qk => space dh as h: Perm[l]\nspace dqk as qk"),
    mutant("prophetnet-decoder", "embeddings in other coordinates", "res", "decoder.word_embeddings.weight vocab res if not two => decoder.word_embeddings.weight vocab other if not two"),
    mutant("bigbird_pegasus-decoder", "the last gain past the head", "dnf", "vocab (res dnf)' = decoder => vocab res' = decoder"),
]  # fmt: skip
