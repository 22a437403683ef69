"""LG's EXAONE."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import seen_inputs
from toy_models import ahead, causal
from toy_settings import (
    CLASSIFYING_LANGUAGE_MODELS,
    GRID,
    IMAGE,
    KNOWN_CAUSAL,
    LANGUAGE_MODELS,
    LAYERS,
    ROUTED_BY_GROUP,
    TWO,
    WINDOWED,
)

EXAONE: dict[str, Any] = {
    **ROUTED_BY_GROUP, "num_experts": 6, "num_shared_experts": 2, "layer_types": LAYERS, "sliding_window": 4,
}  # fmt: skip
SPEAKER: dict[str, Any] = {**TWO, "model_type": "exaone4", "layer_types": LAYERS, "sliding_window": 4}
EXAONE_EYE: dict[str, Any] = {
    **GRID, "num_heads": 6, "num_key_value_heads": 3, "hidden_size": 72, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8,
    "fullatt_block_indexes": [1],
}  # fmt: skip


def _exaone_ahead() -> Any:
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    beside = {f"mtp.{name}.weight": "model.norm.weight" for name in norms} | {"mtp.fc.weight": "fused"}
    return ahead(causal("ExaoneMoe", EXAONE), "model.layers.1.", "mtp.layers.0.", beside)


def _exaone_seeing() -> Any:
    config = tf.Exaone4_5_Config(
        text_config=SPEAKER, vision_config=EXAONE_EYE, image_token_id=IMAGE, video_token_id=64
    )
    return tf.Exaone4_5_ForConditionalGeneration(config)


def _exaone_seeing_ahead() -> Any:
    norms, stem = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), "model.language_model."
    beside = {f"mtp.{name}.weight": f"{stem}norm.weight" for name in norms} | {"mtp.fc.weight": "fused"}
    return ahead(_exaone_seeing(), f"{stem}layers.1.", "mtp.layers.0.", beside)


MORE_TOYS: dict[str, Toy] = {
    "exaone4": (lambda: causal("Exaone4", KNOWN_CAUSAL, layer_types=LAYERS, sliding_window=4), 1e-5),
    "exaone_moe": (
        lambda: causal(
            "ExaoneMoe", ROUTED_BY_GROUP, num_experts=6, num_shared_experts=2, layer_types=LAYERS, sliding_window=4
        ),
        1e-5,
    ),
    "exaone_moe-ahead": (_exaone_ahead, 1e-5),
    "exaone4_5": (_exaone_seeing, 1e-5),
    "exaone4_5-ahead": (_exaone_seeing_ahead, 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Exaone4": (KNOWN_CAUSAL, CLASSIFYING_LANGUAGE_MODELS),
    "ExaoneMoe": ({**ROUTED_BY_GROUP, "num_experts": 6}, LANGUAGE_MODELS),
    "Exaone4_5_": ({"text_config": SPEAKER, "vision_config": EXAONE_EYE}, ["ForConditionalGeneration"]),
    "Exaone4_5_Vision": ({**WINDOWED, "num_heads": 6, "num_key_value_heads": 3}, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    "exaone4": "SignedPerm",
    "exaone_moe": "O",
    "exaone_moe-ahead": {},
    "exaone4_5": {"res": "SignedPerm", "vision_res": "O"},
    "exaone4_5-ahead": {"vision_res": "O"},
}

IDLE = {
    ("exaone4", "vb"),
    ("exaone4_5", "vb"),
    ("exaone4_5-ahead", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "exaone4_5": seen_inputs,
}

CONVERTED = {"exaone_moe", "exaone_moe-ahead"}

MUTANTS = [
    mutant("exaone4", "gains not dual", "t", "(c pair t') if => (c pair t) if"),
    mutant(
        "exaone_moe",
        "the router's bias forgotten",
        "e",
        "(e_score_correction|expert)_bias (eg e) => (e_score_correction|expert)_bias rows",
    ),
    mutant("exaone_moe", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant(
        "exaone4_5",
        "queries in groups of others",
        "vision_h",
        "[h g c pair | => [g h c pair |",
        "res (h g ov') => res (g h ov')",
        part="exaone4_5_vision",
    ),
    mutant(
        "exaone4_5",
        "interleaved pairs",
        "vision_c",
        "g c pair => g pair c",
        "h c' pair | => h pair c' |",
        part="exaone4_5_vision",
    ),
    mutant(
        "exaone4_5",
        "gate scaled",
        "vision_u",
        "gate_proj.weight ff => gate_proj.weight (ff u)",
        part="exaone4_5_vision",
    ),
    mutant(
        "exaone4_5",
        "the tower writes other coordinates",
        "res",
        "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight other vision_project'",
    ),
    mutant(
        "exaone4_5",
        "the projector's neurons not permuted back",
        "vision_project",
        "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight res other",
    ),
]
