"""Plausible wrong specs of models that read and write, made of two others (see `mutants`, `test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

PAIR_MUTANTS = [
    mutant("blip-answers", "answers read the tower", "vres", "(t_xh t_xov) q_res' if answers => (t_xh t_xov) vres' if answers"),
    mutant("blip-answers", "the question read past the tower's last gain", "vnf", "(q_xh q_xov) (vres vnf)' => (q_xh q_xov) vres'"),
    mutant("blip-answers", "cross-attention's key not dual", "q_xqk", "(q_xh q_xqk') => (q_xh q_xqk)"),
    mutant("blip-answers", "words in other coordinates", "q_res", "word_embeddings.weight vocab res => word_embeddings.weight vocab other", part="blip_text_model"),
    mutant("blip-contrast", "the last gain of a norm applied twice", "vnf", "vnf: Scale[vres] if not twice => vnf: Scale[vres]"),
    mutant("luke-inside", "entities in other coordinates", "res", "entities res if inside => entities other if inside"),
    mutant("flaubert-before", "norms behind the branches", "n2", "(ff u) (res n2)' => (ff u) res'"),
    mutant("flaubert-before", "norm's bias not scaled", "n1", "layer_norm1.{l}.bias (res n1) => layer_norm1.{l}.bias res"),
    mutant("flaubert", "gains of post-LN scaled", "n1", "n1: Scale[l, res] if pre_norm => n1: Scale[l, res]"),
    mutant("encoder-decoder-gpt2", "values before keys", "xov", "[xh xqk' | xh xov] => [xh xov | xh xqk']", part="gpt2"),
    mutant("encoder-decoder-gpt2", "the gain before cross-attention forgotten", "nx", "q_attn.weight (res nx)' => q_attn.weight res'", part="gpt2"),
    mutant("encoder-decoder-gpt2", "the encoder's stream forgotten", "read_res", "crossattention.c_attn.weight read_res' => crossattention.c_attn.weight columns", part="gpt2"),
    mutant("encoder-decoder-causal", "past the last gain of GPT-2", "read_nf", "(xh xov) (read_res read_nf)' => (xh xov) read_res'", part="roberta"),
    mutant("encoder-decoder-distilled", "the encoder's stream forgotten", "read_res", "(xh xov) read_res' => (xh xov) columns", part="bert"),
    mutant("vision-encoder-decoder-gpt2", "past the tower's last gain", "read_nf", "(read_res read_nf)' => read_res'", part="gpt2"),
    mutant("vision-encoder-decoder-bert", "past the tower's last gain", "read_nf", "(xh xqk') (read_res read_nf)' => (xh xqk') read_res'", part="bert"),
    mutant("vision-encoder-decoder-donut", "the stream before the last", "read_res3", "(xh xqk') read_res3' => (xh xqk') columns", part="mbart"),
    mutant("mbart-decoder", "the last gain past the head", "dnf", "vocab (res dnf)' = decoder => vocab res' = decoder"),
    mutant("bart-decoder", "embeddings in other coordinates", "res", "decoder.embed_tokens.weight vocab res if not two => decoder.embed_tokens.weight vocab other if not two"),
]  # fmt: skip
