"""Cohere's Command, Aya and Compass."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import placed, seen_as_patches
from toy_models import causal, composed, made
from toy_settings import (
    AYA,
    BOUNDED_IMAGE_TOKENS,
    COMPOSED_MODELS,
    EYE,
    IMAGE,
    KNOWN_TEXT,
    LANGUAGE_MODELS,
    LAYERS,
    MIXED,
    SECTIONS,
    TIED,
)


def _cohere(**changes: Any) -> Any:
    return tf.CohereForCausalLM(tf.CohereConfig(**TIED, pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes))


def _cohere2() -> Any:
    return tf.Cohere2ForCausalLM(
        tf.Cohere2Config(
            **TIED, pad_token_id=0, bos_token_id=1, eos_token_id=2, layer_types=LAYERS, sliding_window=4
        )
    )


COMMANDED: dict[str, Any] = {
    **{k: v for k, v in MIXED.items() if k != "tie_word_embeddings"}, "intermediate_size": 20, "num_shared_experts": 2,
    "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True, "mlp_layer_types": ["dense", "sparse"], "prefix_dense_intermediate_size": 28,
}  # fmt: skip
SIGNS_UNDER_CENTRING = (
    "space t as qk => size sg = 1\nspace sg as qk: Sign[l, kv, pair]\nspace t as qk",
    "weight (kv g pair c) => weight (kv g pair c sg)",
    "weight (kv pair c') => weight (kv pair c' sg)",
)
DEEP: dict[str, Any] = {**EYE, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
# Every second layer of Compass has no positions.
COMPASS: dict[str, Any] = {
    **KNOWN_TEXT, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "logit_scale": 0.5,
    "rope_parameters": {"sliding_attention": SECTIONS, "full_attention": None},
}  # fmt: skip
COHERE_COMPASS: dict[str, Any] = {"text_config": COMPASS, "vision_config": DEEP, **BOUNDED_IMAGE_TOKENS}  # fmt: skip

TOYS: dict[str, Toy] = {
    "cohere": (_cohere, 1e-5),
    "cohere-normed": (lambda: _cohere(use_qk_norm=True), 1e-5),
    "cohere2": (_cohere2, 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "aya_vision": (made("AyaVision", "ForConditionalGeneration", **AYA, image_token_index=IMAGE), 1e-5),
    "cohere2_vision": (made("Cohere2Vision", "ForConditionalGeneration", **AYA, image_token_id=IMAGE), 1e-5),
    "cohere2_moe": (lambda: causal("Cohere2Moe", COMMANDED), 1e-5),
    "cohere_compass": (partial(composed, "CohereCompass", COHERE_COMPASS), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Cohere": ({**TIED, "pad_token_id": 0}, ["Model", "ForCausalLM"]),
    "Cohere2": ({**TIED, "pad_token_id": 0}, ["Model", "ForCausalLM"]),
}

MORE_NAMES: dict[str, Saved] = {
    "AyaVision": (AYA, COMPOSED_MODELS),
    "Cohere2Vision": (AYA, COMPOSED_MODELS),
    "Cohere2Moe": (COMMANDED, LANGUAGE_MODELS),
    "CohereCompass": (COHERE_COMPASS, COMPOSED_MODELS),
    "CohereCompassText": (COMPASS, ["Model", "ForSequenceClassification"]),
}

STREAMS: dict[str, Streams] = {
    "aya_vision": {"res": "Perm", "vision_res": "Perm"},
    "cohere2_vision": {"res": "Perm", "vision_res": "OFixingOnes"},
    "cohere_compass": {"res": "OFixingOnes", "vres": "Perm"},
}

IDLE = {
    ("aya_vision", "vb"),
    ("cohere", "vb"),
    ("cohere-normed", "vb"),
    ("cohere2", "vb"),
    ("cohere2", "kb"),
    ("cohere2_vision", "vb"),
    ("cohere_compass", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "cohere_compass": seen_as_patches(24),
    **dict.fromkeys(["aya_vision", "cohere2_vision"], placed(4)),
}

CONVERTED = {"cohere2_moe"}

MUTANTS = [
    mutant("cohere", "half-split pairs", "c", "(kv g pair c) => (kv g c pair)", "(kv pair c') => (kv c' pair)"),
    mutant("cohere", "MLP past the shared norm", "n1", "gate_proj.weight ff (res n1)' => gate_proj.weight ff res'"),
    mutant("cohere2", "groups fast", "kv", "q_proj.weight (kv g qk) => q_proj.weight (g kv qk)"),
    mutant(
        "cohere2", "any matrix where positions turn", "qk", "(kv g pair c) => (kv g qk)", "(kv pair c') => (kv qk')"
    ),
    mutant("cohere-normed", "signs under a norm that centres", "sg", *SIGNS_UNDER_CENTRING),
    mutant("cohere-normed", "gains not dual", "t", "(pair c t') => (pair c t)"),
    mutant(
        "cohere-normed",
        "complex numbers despite q/k norms",
        "c",
        "pair] if not use_qk_norm and turned => pair]",
        "size c = 2 => ",
    ),
    mutant(
        "aya_vision",
        "the projector's norm in other coordinates",
        "vision_res",
        "layernorm.weight (merge vision_res) => layernorm.weight other",
    ),
    mutant("aya_vision", "gate scaled", "pu", "[project pu | project] => [project | project pu]"),
    mutant(
        "cohere2_vision",
        "the projector past the last gain",
        "vision_nf",
        "(merge vision_res vision_nf)' => (merge vision_res)'",
    ),
    mutant(
        "cohere2_vision",
        "patches fast in the projector",
        "vision_res",
        "(merge vision_res vision_nf)' => (vision_res vision_nf merge)'",
    ),
    mutant("cohere2_moe", "router forgotten", "e", "mlp.gate.weight e => mlp.gate.weight rows"),
    mutant(
        "cohere2_moe", "half-split pairs", "c", "(kv g pair c) => (kv g c pair)", "(kv pair c') => (kv c' pair)"
    ),
    mutant(
        "cohere_compass",
        "interleaved pairs",
        "c",
        "size split = 1\n => size split = 0\n",
        part="cohere_compass_text",
    ),
    mutant(
        "cohere_compass",
        "the tower past the deep projectors",
        "vres",
        "merger_list).{d}.(linear_fc1|mlp.0).weight deep (merge vres)' => merger_list).{d}.(linear_fc1|mlp.0).weight deep other",
    ),
]
