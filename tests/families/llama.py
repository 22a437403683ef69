"""Llama of all generations: text, experts, images; Mllama."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_inputs import drawn_numbers
from toy_models import composed
from toy_settings import (
    CAUSAL_OF_THREE,
    COMPOSED_MODELS,
    DECODER_CLASSES,
    IMAGE,
    KNOWN,
    PLAIN_GAINS,
    TEXT,
    TWO,
    VECTORS,
    Inputs,
)


def _llama(**changes: Any) -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**{**CAUSAL_OF_THREE, **changes}))


SCOUT: dict[str, Any] = {
    **TWO, "intermediate_size": 20, "intermediate_size_mlp": 28, "num_local_experts": 4, "num_experts_per_tok": 1, "no_rope_layers": [1, 0],
    "interleave_moe_layer_step": 2, "attention_bias": True, "layer_types": ["chunked_attention", "full_attention"],
    "attention_chunk_size": 4, "floor_scale": 2, "attn_scale": 0.3,
}  # fmt: skip


def _llama4() -> Any:
    vision = {
        "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 240, "image_size": 8, "patch_size": 2,
        "projector_input_dim": 22, "projector_output_dim": 22, "vision_output_dim": 22,
    }  # fmt: skip
    config = tf.Llama4Config(
        text_config=SCOUT, vision_config=vision, image_token_index=IMAGE, mm_tokens_per_image=4
    )
    return tf.Llama4ForConditionalGeneration(config)


ROPE_GL = (
    "space c as qk: Complex[l, kv, pair] => space c as qk: GL[l, kv]",
    "size pair = head // 2 => size c = head",
    "(kv g c pair) => (kv g c)",
    "(kv c' pair) => (kv c')",
)
CROSSING = (
    "size ov = head => size ov = head\nsize hh = num_attention_heads",
    "space g: Perm[l, kv] => space hh: Perm[l]",
    "(kv g c pair) => (hh head)",
    "(kv c' pair) => rows",
    "space c as qk: Complex[l, kv, pair] => ",
    "res (kv g ov') => res (hh head)",
)
LOOKING: dict[str, Any] = {**TEXT, **KNOWN, "num_hidden_layers": 3, "cross_attention_layers": [1]}


def _looking(_: Any, rng: torch.Generator) -> Inputs:
    """What a model of texts looks at."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "cross_attention_states": drawn_numbers(rng, 3, 7, 48),
    }


def _in_tiles(_: Any, rng: torch.Generator) -> Inputs:
    """Images in one or two tiles, at which all words look."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "pixel_values": drawn_numbers(rng, 3, 1, 2, 3, 8, 8),
        "aspect_ratio_ids": torch.tensor([[1], [2], [3]]), "aspect_ratio_mask": torch.tensor([[[1, 0]], [[1, 1]], [[1, 1]]]),
        "cross_attention_mask": torch.tensor([[[[1, 0]]] * 11, [[[1, 1]]] * 11, [[[1, 1]]] * 11]),
    }  # fmt: skip


LLAMA_TEXT: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "num_hidden_layers": 3, "cross_attention_layers": [1], "num_key_value_heads": 3,
}  # fmt: skip
TILES: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 3, "num_global_layers": 2, "attention_heads": 5, "intermediate_size": 44, "vision_output_dim": 180,
    "image_size": 8, "patch_size": 4, "max_num_tiles": 2, "intermediate_layers_indices": [0, 1],
    "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
}  # fmt: skip
MLLAMA: dict[str, Any] = {"text_config": LLAMA_TEXT, "vision_config": TILES, "image_token_index": IMAGE, "tie_word_embeddings": False}  # fmt: skip

TOYS: dict[str, Toy] = {
    "llama": (_llama, 1e-5),
    "llama-biased": (lambda: _llama(attention_bias=True, mlp_bias=True), 1e-5),
    "llama-tied": (lambda: _llama(tie_word_embeddings=True), 1e-5),
    "llama-mha": (lambda: _llama(num_key_value_heads=6, head_dim=12), 1e-5),
    "llama-mqa": (lambda: _llama(num_key_value_heads=1), 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "llama4_text": (lambda: tf.Llama4ForCausalLM(tf.Llama4TextConfig(**SCOUT)), 1e-5),
    "llama4_text-plain": (lambda: tf.Llama4ForCausalLM(tf.Llama4TextConfig(**SCOUT, use_qk_norm=False)), 1e-5),
    "llama4": (_llama4, 1e-5),
    "mllama": (partial(composed, "Mllama", MLLAMA), 1e-5),
    "mllama_text_model": (lambda: tf.MllamaForCausalLM(tf.MllamaTextConfig(**LOOKING)), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Llama": (CAUSAL_OF_THREE, DECODER_CLASSES),
}

MORE_NAMES: dict[str, Saved] = {
    "Llama4Text": (SCOUT, ["Model"]),
    "Llama4": ({"text_config": SCOUT}, []),
    "Mllama": (MLLAMA, COMPOSED_MODELS),
    "MllamaText": (LOOKING, []),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["llama", "llama-biased", "llama-mha", "llama-mqa", "llama4_text", "llama4_text-plain"], "O"),
    "llama-tied": "SignedPerm",
    "llama4": {"res": "O", "vres": "Perm"},
    "mllama": {"vres": "Perm", "seen": "O", "res": "O"},
    "mllama_text_model": {"res": "O"},
}

IDLE = {
    ("llama", "vb"),
    ("llama-mha", "g"),
    ("llama-mha", "vb"),
    ("llama-mqa", "kv"),
    ("llama-mqa", "vb"),
    ("llama-tied", "vb"),
    ("mllama", "gkb"),
    ("mllama", "vkb"),
}

INPUTS: dict[str, Drawn] = {
    "mllama_text_model": _looking,
    "mllama": _in_tiles,
}

MUTANTS = [
    mutant("llama", "GL on q and k under RoPE", "c", *ROPE_GL),
    mutant("llama", "key not dual", "c", "(kv c' pair) => (kv c pair)"),
    mutant("llama", "interleaved pairs", "c", "(kv g c pair) => (kv g pair c)", "(kv c' pair) => (kv pair c')"),
    mutant("llama", "query heads cross kv groups", "hh", *CROSSING),
    mutant(
        "llama", "scale on gate and up", "u", "gate_proj.weight ff (res n2)' => gate_proj.weight (ff u) (res n2)'"
    ),
    mutant("llama", "residual rotated under gains", "res", "res: SignedPerm => res: O", *PLAIN_GAINS),
    mutant(
        "llama-biased",
        "key bias under RoPE",
        "kb",
        "shift vb:  => shift kb: layers.{l}.self_attn.k_proj.bias\nshift vb: ",
    ),
    mutant(
        "llama4_text",
        "a complex number under norms",
        "c",
        "Turn[l, kv, pair] if turned and normed => Complex[l, kv, pair] if turned and normed",
    ),
    mutant("llama4_text", "router forgotten", "e", "router.weight e => router.weight rows"),
    mutant(
        "llama4_text-plain",
        "half-split pairs",
        "c",
        "(kv g pair c) => (kv g c pair)",
        "(kv pair c') => (kv c' pair)",
    ),
    mutant("llama4_text-plain", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("llama4", "patches fast in the adapter", "vres", "(merge vres vnf)' => (vres vnf merge)'"),
    mutant(
        "llama4",
        "half-split pairs in the tower",
        "vc",
        "(vh vpair vc) => (vh vc vpair)",
        "(vh vpair vc') => (vh vc' vpair)",
    ),
    mutant("mllama", "layers slow", "vres", "[vres' | vres' mid] => [vres' | mid vres']"),
    mutant("mllama", "places of tiles forgotten", "vres", "shape (tile place vres) => shape rows"),
    mutant(
        "mllama",
        "a sign of queries alone",
        "xs",
        "(xkv xqk xs') seen' => (xkv xqk) seen'",
        part="mllama_text_model",
    ),
    mutant(
        "mllama", "values do not turn", "seen", "(xkv xov) seen' => (xkv xov) columns", part="mllama_text_model"
    ),
    mutant(
        "mllama_text_model",
        "what is looked at turned where nothing writes it",
        "seen",
        "residual seen: O if whole => residual seen: O",
    ),
    mutant("mllama_text_model", "a sign of queries alone", "xs", "(xkv xqk xs') seen' => (xkv xqk) seen'"),
]

STREAM_MUTANTS = [
    StreamMutant("llama", "gains as vectors", "O", VECTORS),
    StreamMutant("llama-tied", "final gain folded into a tied head", "O", ()),
    StreamMutant("llama", "final norm not folded", "O", ("norm.weight diag(res nf) => norm.weight res",)),
]
