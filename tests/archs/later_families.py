"""Families whose saved names are tried with every toy alone (see `test_names`): ``Config`` name, its arguments,
model classes."""

from __future__ import annotations

from typing import Any

from toy_decoders import GRANITE as MOE
from toy_decoders import NEO, NORMED, PLAIN, PROTEIN, ROUTED, WIDE
from toy_hybrids import (
    BAMBA,
    FALCON_H1,
    GRANITE,
    JAMBA,
    LFM2,
    LFM2_MOE,
    MAMBA,
    MAMBA2,
    NEMOTRON_H,
    QWEN3_NEXT,
    ZAMBA2,
)
from toy_models import BODY
from toy_seeing import GRID, SECTIONS, TEXT, TOWER

WORDS = ["Model", "ForCausalLM"]
CLASSED = [*WORDS, "ForSequenceClassification"]
SEEN = ["Model", "ForConditionalGeneration"]
SPOKEN = {**TEXT, "rope_parameters": SECTIONS}
SQUARE = {**TOWER, "image_size": [8, 8], "patch_size": [2, 2]}
LATER: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Jamba": (JAMBA, CLASSED),
    "Bamba": (BAMBA, WORDS),
    "FalconH1": (FALCON_H1, WORDS),
    "GraniteMoeHybrid": (GRANITE, WORDS),
    "Lfm2": (LFM2, WORDS),
    "Lfm2Moe": (LFM2_MOE, WORDS),
    "Qwen3Next": (QWEN3_NEXT, [*CLASSED, "ForQuestionAnswering"]),
    "NemotronH": (NEMOTRON_H, WORDS),
    "Zamba2": (ZAMBA2, WORDS),
    "Mamba": (MAMBA, WORDS),
    "FalconMamba": (MAMBA, WORDS),
    "Mamba2": (MAMBA2, WORDS),
    "SeedOss": (PLAIN, CLASSED),
    "SmolLM3": (NORMED, CLASSED),
    "Arcee": (PLAIN, CLASSED),
    "Ernie4_5": (PLAIN, WORDS),
    "Glm": (PLAIN, CLASSED),
    "Glm4": (PLAIN, CLASSED),
    "Glm4Moe": ({**ROUTED, "use_qk_norm": True}, WORDS),
    "Olmo2": (NORMED, CLASSED),
    "Olmo3": (NORMED, WORDS),
    "Exaone4": (PLAIN, CLASSED),
    "Nemotron": (PLAIN, CLASSED),
    "GPTJ": ({**WIDE, "rotary_dim": 4}, [*CLASSED, "ForQuestionAnswering"]),
    "GPTNeo": (NEO, [*CLASSED, "ForQuestionAnswering", "ForTokenClassification"]),
    "GPTBigCode": (WIDE, [*CLASSED, "ForTokenClassification"]),
    "GraniteMoe": (MOE, WORDS),
    "GraniteMoeShared": ({**MOE, "shared_intermediate_size": 24}, WORDS),
    "MPNet": (BODY, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"]),
    "Esm": (PROTEIN, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "Qwen2VLText": (SPOKEN, ["Model"]),
    "Qwen2_5_VLText": (SPOKEN, ["Model"]),
    "Qwen3VLText": (SPOKEN, ["Model"]),
    "Qwen2VL": ({"text_config": SPOKEN, "vision_config": {**GRID, "embed_dim": 60, "hidden_size": 48}}, SEEN),
    "Qwen2_5_VL": (
        {"text_config": SPOKEN, "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44}},
        SEEN,
    ),
    "Qwen3VL": (
        {"text_config": SPOKEN, "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "deepstack_visual_indexes": [0]}},
        SEEN,
    ),
    "PixtralVision": ({**TOWER, "hidden_act": "silu"}, ["Model"]),
    "Mistral3": ({"text_config": {**TEXT, "model_type": "mistral"}, "vision_config": {**TOWER, "model_type": "pixtral"}}, SEEN),
    "InternVLVision": (SQUARE, ["Model"]),
    "InternVL": ({"text_config": {**TEXT, "model_type": "qwen3"}, "vision_config": SQUARE}, SEEN),
}  # fmt: skip
