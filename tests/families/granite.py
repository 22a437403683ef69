"""IBM's Granite: dense, with experts, with state spaces, with sounds and pages."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words
from toy_models import causal
from toy_settings import (
    BODY,
    CAUSAL,
    CAUSAL_OF_THREE,
    COMPOSED_MODELS,
    HEADS,
    IMAGE,
    KNOWN,
    KNOWN_CAUSAL_WITHOUT_HEAD,
    LANGUAGE_MODELS,
    LAYERS,
    SCAN,
    TEXT,
    TOWER,
    TWO,
    Inputs,
)


def _granite() -> Any:
    return tf.GraniteForCausalLM(
        tf.GraniteConfig(
            **CAUSAL,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            attention_multiplier=0.4,
            logits_scaling=2.0,
        )
    )


GRANITE_MOE: dict[str, Any] = {
    **KNOWN_CAUSAL_WITHOUT_HEAD,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 20,
}
MIXED = ["mamba", "attention"]
GRANITE_HYBRID: dict[str, Any] = {
    **TWO,
    **SCAN,
    "layer_types": MIXED,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 24,
    "intermediate_size": 20,
}
SWASH: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "layer_rope_theta": [10000.0, 0], "attention_bias": True,
}  # fmt: skip
SHARED_SWASH: dict[str, Any] = {
    **HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 20, "shared_intermediate_size": 24,
    "layer_types": LAYERS, "sliding_window": 4, "layer_rope_theta": [10000.0, 0], "attention_bias": True,
}  # fmt: skip
DOCLING: dict[str, Any] = {
    "text_config": {**{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "num_hidden_layers": 2}, "image_token_id": IMAGE, "pad_token_id": 0,
    "vision_config": {**TOWER, "image_size": 16, "patch_size": 4, "scale_factor": 4, "out_hidden_size": 48, "deepstack_visual_indexes": [0]},
}  # fmt: skip


def _docling(*, fine: bool) -> Any:
    eye = {**DOCLING["vision_config"], "use_fine_route": fine}
    return tf.GraniteDoclingForConditionalGeneration(tf.GraniteDoclingConfig(**{**DOCLING, "vision_config": eye}))


def _tiled(config: Any, rng: torch.Generator) -> Inputs:
    """A tile for each text, by the fine path where there is one."""
    fine = config.vision_config.use_fine_route
    ways = {"tile_fine_mask": torch.ones(3, dtype=torch.bool)} if fine else {}
    return {
        **ways, "input_ids": drawn_words(rng, 4 if fine else 1), "pixel_values": drawn_numbers(rng, 3, 1, 3, 16, 16),
        "pixel_attention_mask": torch.ones(3, 1, dtype=torch.bool),
    }  # fmt: skip


GRANITE_TEXT: dict[str, Any] = {
    **TEXT,
    **KNOWN,
    "model_type": "granite",
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
}
CONFORMER: dict[str, Any] = {
    "input_dim": 7, "num_layers": 2, "hidden_dim": 40, "feedforward_mult": 2, "num_heads": 4, "dim_head": 9, "output_dim": 11, "context_size": 5,
    "max_pos_emb": 6, "conv_kernel_size": 3, "conv_expansion_factor": 2,
}  # fmt: skip
QUERIES: dict[str, Any] = {
    **BODY, "model_type": "blip_2_qformer", "hidden_size": 36, "num_attention_heads": 4, "encoder_hidden_size": 40, "cross_attention_frequency": 1,
}  # fmt: skip
GRANITE_SPEECH: dict[str, Any] = {
    "text_config": GRANITE_TEXT, "encoder_config": CONFORMER, "projector_config": QUERIES, "audio_token_index": IMAGE, "downsample_rate": 2, "window_size": 4,
    "has_lora_adapter": False, "tie_word_embeddings": False,
}  # fmt: skip


def _in_windows(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Twelve moments of sound in three windows, for each of which two tokens stand."""
    ids = drawn_words(rng, 6)
    return {"input_ids": ids, "input_features": torch.randn((3, 12, 7), generator=rng, dtype=torch.float64)}


TOYS: dict[str, Toy] = {
    "granite": (_granite, 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "granitemoehybrid": (lambda: causal("GraniteMoeHybrid", GRANITE_HYBRID), 1e-5),
    "granitemoehybrid-dense": (
        lambda: causal("GraniteMoeHybrid", GRANITE_HYBRID, num_local_experts=0, position_embedding_type="rope"),
        1e-5,
    ),
    "granitemoe": (lambda: causal("GraniteMoe", GRANITE_MOE), 1e-5),
    "granitemoeshared": (lambda: causal("GraniteMoeShared", GRANITE_MOE, shared_intermediate_size=24), 1e-5),
    "granite_swa": (lambda: causal("GraniteSWA", SWASH, mlp_bias=True), 1e-5),
    "granitemoe_swa": (lambda: causal("GraniteMoeSWA", SHARED_SWASH), 1e-5),
    "granite_speech": (
        lambda: tf.GraniteSpeechForConditionalGeneration(tf.GraniteSpeechConfig(**GRANITE_SPEECH)),
        1e-5,
    ),
    "granite_docling": (lambda: _docling(fine=False), 1e-5),
    "granite_docling-fine": (lambda: _docling(fine=True), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Granite": (CAUSAL_OF_THREE, ["Model", "ForCausalLM"]),
}

MORE_NAMES: dict[str, Saved] = {
    "GraniteMoeHybrid": (GRANITE_HYBRID, LANGUAGE_MODELS),
    "GraniteMoe": (GRANITE_MOE, LANGUAGE_MODELS),
    "GraniteMoeShared": ({**GRANITE_MOE, "shared_intermediate_size": 24}, LANGUAGE_MODELS),
    "GraniteSWA": (SWASH, LANGUAGE_MODELS),
    "GraniteMoeSWA": (SHARED_SWASH, LANGUAGE_MODELS),
    "GraniteSpeech": (GRANITE_SPEECH, ["Model", "ForConditionalGeneration"]),
    "GraniteDocling": ({**DOCLING, "density_router_hidden_size": 14}, COMPOSED_MODELS),
    "GraniteDoclingText": (DOCLING, []),
    "GraniteDoclingVision": (DOCLING, []),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(
        [
            "granite",
            "granitemoehybrid",
            "granitemoehybrid-dense",
            "granitemoe",
            "granitemoeshared",
            "granite_swa",
            "granitemoe_swa",
        ],
        "O",
    ),
    "granite_speech": {"res": "O", "cres": "Perm", "qres": "Perm"},
    **{key: {"res": "Perm", "vision_res": "Perm"} for key in ["granite_docling", "granite_docling-fine"]},
}

MIXERS = ("mg", "mh", "mp", "ms", "mu", "xs", "bs", "cs")  # spaces of state spaces, which none of these has
IDLE = {
    *((toy, space) for toy in ("granitemoe", "granitemoe_swa", "granitemoeshared") for space in MIXERS),
    ("granite", "vb"),
    ("granite_docling", "vb"),
    ("granite_docling-fine", "vb"),
    ("granite_speech", "vb"),
    ("granitemoe", "vb"),
    ("granitemoehybrid", "kb"),
    ("granitemoehybrid", "vb"),
    ("granitemoehybrid-dense", "vb"),
    ("granitemoeshared", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "granite_docling": _tiled,
    "granite_speech": _in_windows,
}

MUTANTS = [
    mutant(
        "granitemoehybrid",
        "the state space past the gain",
        "n1",
        "mg ms cs | mg mh] (res n1)' => mg ms cs | mg mh] res'",
    ),
    mutant(
        "granitemoehybrid",
        "gates of other channels",
        "mp",
        "mamba.in_proj.weight [mg mh mp | => mamba.in_proj.weight [mg mh channel |",
        "size vocab => size channel = mp\nsize vocab",
    ),
    mutant("granitemoehybrid", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant(
        "granitemoehybrid-dense",
        "any matrix under rotary positions",
        "qk",
        'size turned = 1 if position_embedding_type == "rope" else 0 => size turned = 0',
    ),
    mutant(
        "granitemoe",
        "router forgotten",
        "e",
        "router.weight) e (res n2)' => router.weight) rows (res n2)'",
    ),
    mutant("granitemoeshared", "shared gate and up mistaken", "su", "[sff | sff su] => [sff su | sff]"),
    mutant("granite_swa", "sinks forgotten", "kv", "sinks (kv g) => sinks rows"),
    mutant(
        "granite_swa",
        "value bias free under sinks",
        "vb",
        "embed_tokens.weight vocab res\n => shift vb: layers.{l}.self_attn.v_proj.bias -> layers.{l}.self_attn.o_proj.bias via layers.{l}.self_attn.o_proj.weight\nembed_tokens.weight vocab res\n",
    ),
    mutant(
        "granite_swa",
        "any matrix where one layer turns",
        "c",
        "space c as qk: Complex[l, kv, pair] => size c = 2\nspace c as qk: GL[l, kv, pair]",
    ),
    mutant("granitemoe_swa", "sinks forgotten", "kv", "sinks (kv g) => sinks rows"),
    mutant(
        "granitemoe_swa",
        "value bias free under sinks",
        "vb",
        "embed_tokens.weight vocab res\n => shift vb: layers.{l}.self_attn.v_proj.bias -> layers.{l}.self_attn.o_proj.bias via layers.{l}.self_attn.o_proj.weight\nembed_tokens.weight vocab res\n",
    ),
    mutant(
        "granite_speech",
        "a matrix per head under one table",
        "cqk",
        "cqk as qk: GL[l] => cqk as qk: GL[l, ch]",
        "place cqk' => place places",
    ),
    mutant("granite_speech", "values before keys", "cov", "[ch cqk' | ch cov] => [ch cov | ch cqk']"),
    mutant("granite_speech", "gates and values mistaken", "cu", "[channel cu | channel] => [channel | channel cu]"),
    mutant(
        "granite_speech",
        "what is heard in the middle forgotten",
        "cres",
        "encoder.out_mid.weight cres tokens => encoder.out_mid.weight rows tokens",
    ),
    mutant("granite_speech", "queries read other coordinates", "cres", "(qxh qxov) cres' => (qxh qxov) other"),
    mutant(
        "granite_speech",
        "the map writes other coordinates",
        "res",
        "projector.linear.bias res => projector.linear.bias rows",
    ),
    mutant(
        "granite_docling",
        "signs through the connector's LayerNorm",
        "res",
        "residual res: Perm => residual res: SignedPerm",
    ),
    mutant(
        "granite_docling",
        "sinusoids permuted",
        "mid",
        "residual nin => space mid as ff: Perm\nresidual nin",
        "weight res mid => weight res mid'",
    ),
    mutant("granite_docling", "the projector's neurons not permuted back", "cdeep", "res cdeep' => res other"),
    mutant(
        "granite_docling-fine",
        "neighbours fast",
        "vision_res",
        "mid (fine vision_res nin)' => mid (vision_res nin fine)'",
    ),
    mutant(
        "granite_docling",
        "past the gain in front of the connector",
        "nin",
        "mid (coarse vision_res nin)' => mid (coarse vision_res)'",
    ),
]
