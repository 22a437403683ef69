"""Falcon: attention, state spaces, both."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import mutant
from toy_models import causal
from toy_settings import DECODER_CLASSES, LANGUAGE_MODELS, MAMBA, SCAN, TWO

FALCON = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "ffn_hidden_size": 40,
    "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip


def _falcon(**changes: Any) -> Any:
    return tf.FalconForCausalLM(tf.FalconConfig(**FALCON, **changes))


FALCON_H1: dict[str, Any] = {
    **TWO, **SCAN, "mamba_d_ssm": 96, "attention_in_multiplier": 0.7, "key_multiplier": 0.5, "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [0.8, 0.6],
}  # fmt: skip

TOYS: dict[str, Toy] = {
    "falcon": (_falcon, 1e-9),
    "falcon-grouped": (
        lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2, bias=True, tie_word_embeddings=False),
        1e-9,
    ),
    "falcon-rw": (lambda: _falcon(alibi=True, multi_query=False, parallel_attn=False, bias=True), 1e-9),
    "falcon_h1": (lambda: causal("FalconH1", FALCON_H1), 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "falcon_mamba": (lambda: tf.FalconMambaForCausalLM(tf.FalconMambaConfig(**MAMBA)), 1e-5),
    "falcon-slopes": (
        lambda: _falcon(
            new_decoder_architecture=True, num_kv_heads=2, alibi=True, bias=True, tie_word_embeddings=False
        ),
        1e-9,
    ),
}

NAMES: dict[str, Saved] = {
    "Falcon": (FALCON, DECODER_CLASSES),
}

MORE_NAMES: dict[str, Saved] = {
    "FalconH1": (FALCON_H1, LANGUAGE_MODELS),
    "FalconMamba": (MAMBA, LANGUAGE_MODELS),
}

STREAMS: dict[str, Streams] = {
    "falcon-grouped": "OFixingOnes",
    "falcon_h1": "O",
    "falcon_mamba": "SignedPerm",
    "falcon-slopes": {"res": "OFixingOnes"},
}

IDLE = {
    ("falcon", "kv"),
    ("falcon", "vb"),
    ("falcon_h1", "vb"),
}

MUTANTS = [
    mutant(
        "falcon-rw",
        "heads permuted under ALiBi",
        "kv",
        "space kv as h: Perm[l] if not alibi => space kv as h: Perm[l]",
    ),
    mutant("falcon", "MLP past the shared norm", "n1", "(ff u) (res n1)' if => (ff u) res' if"),
    mutant(
        "falcon-grouped",
        "fused block by block",
        "kv",
        "(kv [g c pair | c' pair | ov]) => [kv g c pair | kv c' pair | kv ov]",
    ),
    mutant("falcon-grouped", "key bias under rotary positions", "kb", "bias#1 if alibi => bias#1"),
    mutant(
        "falcon_h1",
        "the state space past the shared gain",
        "n1",
        "mamba.in_proj.weight [mg mh mp | mg mh mp xs | mg ms bs | mg ms cs | mg mh] (res n1)' => mamba.in_proj.weight [mg mh mp | mg mh mp xs | mg ms bs | mg ms cs | mg mh] res'",
    ),
    mutant("falcon_h1", "a gain where there is no norm", "mu", " if mamba_rms_norm => "),
    mutant(
        "falcon_h1", "any matrix on a rotated pair", "c", "space c as qk: Complex => size c = 2\nspace c as qk: GL"
    ),
    mutant("falcon_mamba", "any matrix behind a norm", "dt", "space dt as latent: O => space dt as latent: GL"),
    mutant(
        "falcon-slopes",
        "heads permuted under ALiBi",
        "kv",
        "space kv as h: Perm[l] if not alibi => space kv as h: Perm[l]",
    ),
    mutant(
        "falcon-slopes",
        "a matrix for every query",
        "qk",
        "(kv [g qk | qk' | ov]) (res n1)' if alibi => (kv [g qk | other | ov]) (res n1)' if alibi",
        "(kv [g qk | qk' | ov]) if alibi => (kv [g qk | other | ov]) if alibi",
        "size qk => size other = head\nsize qk",
    ),
]
