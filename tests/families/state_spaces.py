"""State spaces, alone and beside attention: Mamba, Jamba, Bamba, Zamba."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import mutant
from toy_models import causal
from toy_settings import (
    CLASSIFYING_LANGUAGE_MODELS,
    HEADS,
    LANGUAGE_MODELS,
    MAMBA,
    SCAN,
    TASK_CLASSES,
    TWO,
)

JAMBA: dict[str, Any] = {
    **TWO, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
    "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_dt_rank": 5,
    "mamba_expand": 2,
}  # fmt: skip
BAMBA: dict[str, Any] = {**TWO, **SCAN, "attn_layer_indices": [1]}
MAMBA2: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "state_size": 10, "num_hidden_layers": 2, "conv_kernel": 3, "expand": 2,
    "num_heads": 12, "head_dim": 8, "n_groups": 2, "chunk_size": 4,
}  # fmt: skip
ZAMBA2: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k not in ("head_dim",)}, "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_expand": 2,
    "mamba_ngroups": 2, "n_mamba_heads": 12, "chunk_size": 4, "num_mem_blocks": 1, "adapter_rank": 7, "use_mem_rope": True, "tie_word_embeddings": True,
}  # fmt: skip
ZAMBA: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 5,
    "mamba_d_conv": 3, "mamba_dt_rank": 4, "use_mamba_kernels": False, "mamba_proj_bias": True,
}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "jamba": (lambda: causal("Jamba", JAMBA), 1e-5),
    "bamba": (lambda: causal("Bamba", BAMBA), 1e-5),
    "zamba2": (lambda: causal("Zamba2", ZAMBA2), 1e-5),
    "mamba": (lambda: tf.MambaForCausalLM(tf.MambaConfig(**MAMBA)), 1e-5),
    "mamba2": (lambda: tf.Mamba2ForCausalLM(tf.Mamba2Config(**MAMBA2)), 1e-5),
    "zamba": (lambda: causal("Zamba", ZAMBA), 1e-5),
    "zamba2-adapted": (
        lambda: tf.Zamba2ForCausalLM(
            tf.Zamba2Config(
                **{
                    **ZAMBA2,
                    "use_shared_attention_adapter": True,
                    "num_key_value_heads": ZAMBA2["num_attention_heads"],
                }
            )
        ),
        1e-5,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "Jamba": (JAMBA, CLASSIFYING_LANGUAGE_MODELS),
    "Bamba": (BAMBA, LANGUAGE_MODELS),
    "Zamba2": (ZAMBA2, LANGUAGE_MODELS),
    "Mamba": (MAMBA, LANGUAGE_MODELS),
    "Mamba2": (MAMBA2, LANGUAGE_MODELS),
    "Zamba": (ZAMBA, [*LANGUAGE_MODELS, TASK_CLASSES[0]]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["jamba", "bamba", "mamba2"], "O"),
    **dict.fromkeys(["zamba2", "mamba", "zamba"], "SignedPerm"),
    "zamba2-adapted": {"res": "SignedPerm"},
}

IDLE = {
    ("bamba", "kb"),
    ("bamba", "vb"),
    ("zamba2-adapted", "g"),
}

CONVERTED = {"jamba"}

MUTANTS = [
    mutant(
        "jamba",
        "the state space reads other coordinates",
        "res",
        "mamba.in_proj.weight [ch cu | ch] (res n1)' => mamba.in_proj.weight [ch cu | ch] other",
    ),
    mutant(
        "jamba",
        "the state space past the gain",
        "n1",
        "mamba.in_proj.weight [ch cu | ch] (res n1)' => mamba.in_proj.weight [ch cu | ch] res'",
    ),
    mutant(
        "jamba",
        "the gain of states read twice",
        "su",
        "c_layernorm.weight (st cs su') => c_layernorm.weight (st cs su)",
    ),
    mutant(
        "jamba",
        "steps past their norm",
        "dg",
        "dt_layernorm.weight diag(dt dg) => dt_layernorm.weight diag(dt)",
        "dt_proj.weight ch (dt dg)' => dt_proj.weight ch dt'",
        "mamba.x_proj.weight [dt | => mamba.x_proj.weight [dt dg |",
    ),
    mutant("jamba", "router forgotten", "e", "router.weight e (res n2)' => router.weight rows (res n2)'"),
    mutant(
        "bamba",
        "the state space writes other coordinates",
        "res",
        "mamba.out_proj.weight res (mg => mamba.out_proj.weight other (mg",
    ),
    mutant("bamba", "states of a group turned", "ms", "space ms as qk: Perm => space ms as qk: O"),
    mutant(
        "bamba",
        "heads leave their group",
        "mh",
        "mamba_n_groups or 1 => 1",
        "[mg mh mp | mg mh mp xs | mg ms bs | mg ms cs | mg mh] => [mg mh mp | mg mh mp xs | two ms bs | two ms cs | mg mh]",
        "[mg mh mp xs' | mg ms bs' | mg ms cs'] => [mg mh mp xs' | two ms bs' | two ms cs']",
        "space ms as qk: Perm[l, mg]\n => ",
        "size vocab => size two = 2\nsize vocab",
    ),
    mutant(
        "bamba",
        "rest before the rotated part",
        "rest",
        "[c pair | rest] => [rest | c pair]",
        "[c' pair | rest'] => [rest' | c' pair]",
    ),
    mutant(
        "zamba2",
        "the embeddings' half forgotten",
        "res",
        "[res | res]' => [res' | other]",
        "size vocab => size other = res\nsize vocab",
    ),
    mutant(
        "zamba2",
        "low-rank changes of gate and up forgotten",
        "ff",
        "adapter_list.{a}.1.weight [ff | ff u] rank => adapter_list.{a}.1.weight rows rank",
    ),
    mutant(
        "mamba",
        "the state space reads other coordinates",
        "res",
        "in_proj.weight [ch cu | ch] (res n1)' => in_proj.weight [ch cu | ch] (other n1)'",
        "size vocab => size other = res\nsize vocab",
        "residual n1: Scale[l, res]\n => ",
        "diag(res n1) => diag(res)",
        "(other n1)' => other'",
    ),
    mutant(
        "mamba",
        "states turned under their decays",
        "st",
        "space st as qk: Perm => space st as qk: GL",
        "space su as qk: Scale[l, st]\n => ",
        "x_proj.weight [dt | st su yu | st su'] => x_proj.weight [dt | st yu | st']",
    ),
    mutant(
        "mamba", "one factor for both sides of a state", "su", "[dt | st su yu | st su'] => [dt | st su yu | st su]"
    ),
    mutant("mamba", "what a layer gives scaled past its skip", "yu", "mixer.D (ch yu) => mixer.D ch"),
    mutant(
        "mamba",
        "a channel's factor past its convolution",
        "cu",
        "conv1d.weight (ch cu') 1 width => conv1d.weight ch 1 width",
    ),
    mutant(
        "mamba2",
        "one factor for what is written to a state and what reads it",
        "bs",
        "space cs as scale: Scale[l, mg, ms]\n => ",
        "mg ms bs | mg ms cs | mg mh] (res n1)' => mg ms bs | mg ms bs | mg mh] (res n1)'",
        "[mg mh mp xs' | mg ms bs' | mg ms cs'] 1 width => [mg mh mp xs' | mg ms bs' | mg ms] 1 width",
    ),
    mutant("mamba", "the last gain in the tied head", "nf", "(res nf)' = embeddings.weight => (res nf)'"),
    mutant(
        "mamba2", "the state space past the gain", "n1", "mg ms cs | mg mh] (res n1)' => mg ms cs | mg mh] res'"
    ),
    mutant(
        "mamba2",
        "channels past the gain of their norm",
        "mp",
        "norm.weight (mg mh mp mu) => norm.weight channel",
        "(mg mh mp mu') => (mg mh mp)",
        "space mu as scale: Scale[l, mg, mh, mp]\n => ",
    ),
    mutant(
        "zamba",
        "half of what the shared block reads",
        "res",
        "diag([res | res]) => diag([res | same])",
        "[res | res]' => [res | same]'",
        "size kv = => size same = res\nsize kv =",
    ),
    mutant("zamba", "key not dual", "qk", "(kv qk') => (kv qk)"),
    mutant(
        "zamba2-adapted",
        "low-rank changes of queries forgotten",
        "c",
        "linear_q_adapter_list.{a}.1.weight (kv g c pair) rank => linear_q_adapter_list.{a}.1.weight rows rank",
    ),
    mutant(
        "zamba2-adapted",
        "low-rank changes past the stream",
        "res",
        "linear_v_adapter_list.{a}.0.weight rank [res | res]' => linear_v_adapter_list.{a}.0.weight rank other",
    ),
]
