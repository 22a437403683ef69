"""What is discovered of a handful of classes, once per session."""

from __future__ import annotations

from functools import cache

from isomerge.discovery.discover import Discovery, discover

GROUPED = {"num_attention_heads": 32, "num_key_value_heads": 8}
# Classes with every part that discovery knows: the config, and what must be found of each, some for the first time
# here.
WANTED = {
    # rotary and grouped queries, gated, RMSNorm
    "llama": (
        GROUPED,
        {"kv: Perm", "g: Perm", "c: Complex", "ov: GL", "ff: Perm", "u: Scale", "res: SignedPerm folded O"},
    ),
    # norms on queries and keys
    "qwen3": (
        GROUPED,
        {"kv: Perm", "g: Perm", "sg: Sign", "t: Scale", "ov: GL", "ff: Perm", "res: SignedPerm folded O"},
    ),
    # LayerNorm, no positions inside, fused and transposed, biases
    "gpt2": ({}, {"h: Perm", "qk: GL", "ov: GL", "ff: Perm", "kb", "vb", "res: Perm folded OFixingOnes"}),
    # partly rotated, interleaved, parallel; no spec by hand
    "gptj": ({}, {"h: Perm", "c: Complex", "rest: GL", "ov: GL", "ff: Perm", "res: Perm folded OFixingOnes"}),
    # after the sum: nothing can be folded but the head's own norm
    "bert": ({}, {"h: Perm", "qk: GL", "ov: GL", "ff: Perm", "kb", "vb", "res: Perm"}),
}
# The smallest configs of more classes: what has parts, gains stored less one, latents and experts behind a dense
# layer.
MORE = {"deepseek_v2": {"num_experts_per_tok": 6, "topk_method": "greedy", "first_k_dense_replace": 1}}


@cache
def found(kind: str) -> Discovery:
    """What is discovered of a class."""
    return discover({"model_type": kind, **(WANTED[kind][0] if kind in WANTED else MORE.get(kind, {}))})
