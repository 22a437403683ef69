"""Mistral's: Mistral, Mixtral, Ministral, Pixtral behind them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, seen_inputs
from toy_models import causal
from toy_settings import (
    CAUSAL_OF_THREE,
    CHOOSING,
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    DECODER_CLASSES,
    IMAGE,
    KEYS,
    KNOWN,
    LATENT_EXPERTS,
    LAYERS,
    ROUTED_LATENT,
    TEXT,
    TOWER,
    TWO,
    Inputs,
)


def _mistral3() -> Any:
    config = tf.Mistral3Config(
        text_config={**TEXT, "model_type": "mistral"}, vision_config={**TOWER, "model_type": "pixtral", "head_dim": 12, "hidden_act": "silu"},
        image_token_index=IMAGE, tie_word_embeddings=False, projector_hidden_act="gelu",
    )  # fmt: skip
    return tf.Mistral3ForConditionalGeneration(config)


SCALED: dict[str, Any] = {
    **TWO,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 3,
    },
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.4,
    "partial_rotary_factor": 6 / 14,
}  # fmt: skip
LANGUAGE_MODELS_OF_ALL_TASKS = [*CLASSIFYING_LANGUAGE_MODELS, "ForTokenClassification", "ForQuestionAnswering"]
LARGE_TEXT = "mistral_large4_text"
LARGE: dict[str, Any] = {
    **{k: v for k, v in LATENT_EXPERTS.items() if k not in ("q_lora_rank", "n_group", "topk_group")}, **KNOWN, **CHOOSING, "num_hidden_layers": 4,
    "no_rope_layers": [1, 0, 1, 1], "indexer_types": ["full", "full", "shared", "full"], "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
LARGE_WHOLE: dict[str, Any] = {
    "text_config": LARGE, "vision_config": {**TOWER, "model_type": "pixtral", "num_hidden_layers": 2}, "image_token_index": IMAGE, "multimodal_projector_bias": True,
}  # fmt: skip


def _large(**changes: Any) -> Any:
    config = tf.MistralLarge4Config(**{**LARGE_WHOLE, "text_config": {**LARGE, **changes}})
    return tf.MistralLarge4ForConditionalGeneration(config)


def _sized(_: Any, rng: torch.Generator) -> Inputs:
    """Images whose sizes are told, of which four patches at once are merged."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3),
    }  # fmt: skip


TOYS: dict[str, Toy] = {
    "mistral": (
        lambda: tf.MistralForSequenceClassification(tf.MistralConfig(**CAUSAL_OF_THREE, pad_token_id=0)),
        1e-5,
    ),
    "mixtral": (
        lambda: tf.MixtralForCausalLM(
            tf.MixtralConfig(**CAUSAL_OF_THREE, num_local_experts=4, num_experts_per_tok=2)
        ),
        1e-5,
    ),
}

MORE_TOYS: dict[str, Toy] = {
    "mistral3": (_mistral3, 1e-5),
    "ministral": (lambda: causal("Ministral", TWO, layer_types=LAYERS, sliding_window=4), 1e-5),
    "ministral3": (lambda: causal("Ministral3", SCALED), 1e-5),
    "mistral4": (lambda: causal("Mistral4", ROUTED_LATENT, first_k_dense_replace=1, rope_parameters=YARN), 1e-5),
    "mistral_large4": (_large, 1e-5),
}

NAMES: dict[str, Saved] = {
    "Mistral": (CAUSAL_OF_THREE, DECODER_CLASSES),
    "Mixtral": ({**CAUSAL_OF_THREE, "num_local_experts": 4}, DECODER_CLASSES),
}

MORE_NAMES: dict[str, Saved] = {
    "PixtralVision": ({**TOWER, "hidden_act": "silu"}, ["Model"]),
    "Mistral3": (
        {"text_config": {**TEXT, "model_type": "mistral"}, "vision_config": {**TOWER, "model_type": "pixtral"}},
        COMPOSED_MODELS,
    ),
    "Ministral": (TWO, LANGUAGE_MODELS_OF_ALL_TASKS),
    "Ministral3": (SCALED, LANGUAGE_MODELS_OF_ALL_TASKS),
    "Mistral4": (
        {**ROUTED_LATENT, "first_k_dense_replace": 1},
        [*CLASSIFYING_LANGUAGE_MODELS, "ForTokenClassification"],
    ),
    "MistralLarge4": ({**LARGE_WHOLE, "text_config": {**LARGE, "attention_bias": True}}, COMPOSED_MODELS),
    "MistralLarge4Text": (LARGE, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["mistral", "mixtral", "ministral", "ministral3", "mistral4"], "O"),
    "mistral3": {"res": "O", "vision_res": "SignedPerm"},
    "mistral_large4": {"res": "Perm", "vision_res": "SignedPerm", "merged": "O"},
}

IDLE = {
    ("ministral", "vb"),
    ("ministral3", "vb"),
    ("mistral", "vb"),
    ("mistral3", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "mistral_large4": _sized,
    "mistral3": seen_inputs,
}

CONVERTED = {"mistral_large4", "mixtral"}

MUTANTS = [
    mutant("mistral", "groups fast", "kv", "(kv g c pair) => (g kv c pair)", "(kv g ov') => (g kv ov')"),
    mutant("mistral", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant(
        "mixtral",
        "router forgotten",
        "e",
        "gate.weight e (res n2)' => gate.weight rows (res n2)'",
        "? score.bias => ? layers.{l}.nowhere.weight e\n? score.bias",
    ),
    mutant("mixtral", "scale on gate and up", "u", "w1.weight ff (res n2)' => w1.weight (ff u) (res n2)'"),
    mutant("mixtral", "gate and down mistaken", "ff", "w1.weight ff (res n2)' => w1.weight rows (res n2)'"),
    mutant(
        "mistral3",
        "patches slow in the merging map",
        "vision_res",
        "(vision_res np merge)' => (merge vision_res np)'",
    ),
    mutant("mistral3", "merged past the gain", "np", "(vision_res np merge)' => (vision_res merge)'"),
    mutant(
        "mistral3",
        "interleaved pairs",
        "vision_c",
        "(h c pair) => (h pair c)",
        "(h c' pair) => (h pair c')",
        part="pixtral",
    ),
    mutant(
        "mistral3",
        "the tower's gate scaled",
        "vision_u",
        "(gate_proj|w1).weight ff => (gate_proj|w1).weight (ff u)",
        part="pixtral",
    ),
    mutant("ministral", "interleaved pairs", "c", *KEYS),
    mutant("ministral", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant("ministral3", "interleaved pairs", "c", *KEYS),
    mutant("ministral3", "groups fast", "kv", "(kv g c pair) => (g kv c pair)", "(kv g ov') => (g kv ov')"),
    mutant("mistral4", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant("mistral4", "values before keys", "ov", "(h [nope' | ov]) => (h [ov | nope'])"),
    mutant(
        "mistral_large4",
        "the norm's gain where a choice reads behind it",
        "n1",
        "layers.{l:chosen}.attention_norm.weight diag(res) => layers.{l:chosen}.attention_norm.weight diag(res n1)",
        part=LARGE_TEXT,
    ),
    mutant(
        "mistral_large4",
        "signs through the choice's LayerNorm",
        "res",
        "residual res: Perm => residual res: SignedPerm",
        part=LARGE_TEXT,
    ),
    mutant(
        "mistral_large4",
        "heads without their scaling",
        "qs",
        "softmax_scaling.bias) (h qs') => softmax_scaling.bias) h",
        part=LARGE_TEXT,
    ),
    mutant(
        "mistral_large4",
        "halves of a head turned together",
        "c",
        "[nope | pair c] => [nope | c pair]",
        "[lat | pair c'] => [lat | c' pair]",
        part=LARGE_TEXT,
    ),
    mutant(
        "mistral_large4",
        "negative factors through ReLU",
        "ip",
        "ip as scale: PositiveScale => ip as scale: Scale",
        part=LARGE_TEXT,
    ),
    mutant(
        "mistral_large4",
        "heads of the choice without their weights",
        "ih",
        "weights_proj.weight (ih ip') => weights_proj.weight rows",
        part=LARGE_TEXT,
    ),
    mutant("mistral_large4", "keys of the choice scaled twice", "jt", "irest jt'] => irest jt]", part=LARGE_TEXT),
    mutant(
        "mistral_large4",
        "keys of the choice without their norm's bias",
        "iwide",
        "k_norm.bias (iwide kt) => k_norm.bias rows",
        part=LARGE_TEXT,
    ),
    mutant(
        "mistral_large4",
        "patches of the tower in halves",
        "vision_c",
        "wq.weight (h pair c) => wq.weight (h c pair)",
        "wk.weight (h pair c') => wk.weight (h c' pair)",
        part="pixtral",
    ),
    mutant(
        "mistral_large4",
        "past the gain in front of the projector",
        "np",
        "(vision_res np merge)' => (vision_res merge)'",
    ),
    mutant(
        "mistral_large4",
        "what is merged in other coordinates",
        "merged",
        "linear_1).weight (project pu) merged' => linear_1).weight (project pu) other",
    ),
]
