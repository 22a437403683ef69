"""Plausible wrong specs of models that read and write, made of two others (see `mutants`, `test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

PAIR_MUTANTS = [
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
