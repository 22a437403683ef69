"""Families of `toy_languages` whose saved names are tried with every toy alone (see `test_names`)."""

from __future__ import annotations

from typing import Any

from toy_languages import (
    AFMOE,
    BIASED,
    COMMANDED,
    EIGHT,
    ERNIE,
    EYES,
    FIRST,
    GEMMA3N,
    GEMMA4,
    GROUPED,
    HEADS,
    JET,
    LATENT,
    MIXED,
    NEXT,
    NEXT_MIXED,
    PLAIN,
    ROUTED_LATENT,
    SCALED,
    SCOUT,
    SECTIONS_OF_A_PART,
    SHARED_SWASH,
    SPOKEN_MODERN,
    SWASH,
    TWO,
)
from toy_seeing import SECTIONS

WORDS = ["Model", "ForCausalLM"]
CLASSED = [*WORDS, "ForSequenceClassification"]
SEEN = ["Model", "ForConditionalGeneration"]
TASKS = [*CLASSED, "ForTokenClassification", "ForQuestionAnswering"]
SPOKEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Ministral": (TWO, TASKS),
    "Ministral3": (SCALED, TASKS),
    "Cwm": (TWO, WORDS),
    "InternLM3": (BIASED, []),  # transformers runs these as Llama
    "IQuestCoder": (TWO, []),
    "HyperCLOVAX": (BIASED, WORDS),
    "GraniteSWA": (SWASH, WORDS),
    "EuroBert": (BIASED, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "Helium": (TWO, [*CLASSED, "ForTokenClassification"]),
    "VaultGemma": (TWO, WORDS),
    "Jais2": (BIASED, WORDS),
    "HunYuanDenseV1": (TWO, CLASSED),
    "NanoChat": (TWO, WORDS),
    "Olmo": (HEADS, CLASSED),
    "FlexOlmo": ({**HEADS, "num_experts": 4}, WORDS),
    "Dots1": ({**GROUPED, "n_routed_experts": 6}, WORDS),
    "SolarOpen": (
        {**{k: v for k, v in GROUPED.items() if k != "first_k_dense_replace"}, "n_routed_experts": 6},
        WORDS,
    ),
    "ExaoneMoe": ({**GROUPED, "num_experts": 6}, WORDS),
    "HunYuanMoEV1": ({**TWO, "num_experts": 4}, CLASSED),
    "Ernie4_5_Moe": (ERNIE, WORDS),
    "MiniMaxM2": ({**TWO, "num_local_experts": 4}, WORDS),
    "Qwen3VLMoeText": (MIXED, []),
    "Qwen3VLMoe": (
        {
            "text_config": {**MIXED, "rope_parameters": SECTIONS},
            "vision_config": {**EYES, "deepstack_visual_indexes": [0]},
        },
        SEEN,
    ),
    "Qwen3_5": ({"text_config": {**NEXT, "rope_parameters": SECTIONS_OF_A_PART}, "vision_config": EYES}, SEEN),
    "Qwen3_5Moe": (
        {"text_config": {**NEXT_MIXED, "rope_parameters": SECTIONS_OF_A_PART}, "vision_config": EYES},
        SEEN,
    ),
    "Qwen3_5Text": (NEXT, ["Model", "ForSequenceClassification"]),
    "Qwen3_5MoeText": (NEXT_MIXED, ["Model"]),
    "Llama4Text": (SCOUT, ["Model"]),
    "CodeGen": ({**EIGHT, "rotary_dim": 4}, WORDS),
    "Persimmon": (PLAIN, [*CLASSED, "ForTokenClassification"]),
    "BioGpt": (PLAIN, [*CLASSED, "ForTokenClassification"]),
    "GPTNeoXJapanese": (PLAIN, WORDS),
    "OpenAIGPT": (FIRST, ["Model", "LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"]),
    "GraniteMoeSWA": (SHARED_SWASH, WORDS),
    "Afmoe": (AFMOE, WORDS),
    "Gemma3nText": (GEMMA3N, ["Model"]),
    "Gemma4Text": (GEMMA4, ["Model"]),
    "Llama4": ({"text_config": SCOUT}, []),  # its smallest tower is large; the toy is its test
    "JetMoe": (JET, CLASSED),
    "ModernBertDecoder": (SPOKEN_MODERN, CLASSED),
    "Cohere2Moe": (COMMANDED, WORDS),
    "Youtu": (LATENT, WORDS),
    "MiniCPM3": (LATENT, CLASSED),
    "Glm4MoeLite": (ROUTED_LATENT, WORDS),
    "Mistral4": ({**ROUTED_LATENT, "first_k_dense_replace": 1}, [*CLASSED, "ForTokenClassification"]),
    "DeepseekV32": ({**ROUTED_LATENT, "first_k_dense_replace": 1}, WORDS),
    "Apertus": (TWO, [*WORDS, "ForTokenClassification"]),
}
SPOKEN_STREAMS = {
    **dict.fromkeys(
        [
            "ministral", "ministral3", "cwm", "internlm3", "iquestcoder", "granite_swa", "eurobert", "helium", "hunyuan_v1_dense",
            "apertus", "vaultgemma", "dots1", "solar_open", "exaone_moe", "hunyuan_v1_moe", "ernie4_5_moe", "minimax_m2", "qwen3_5_text",
            "qwen3_5_moe_text", "qwen3_5_moe_text-fused", "llama4_text", "llama4_text-plain", "youtu", "minicpm3", "glm4_moe_lite", "mistral4", "deepseek_v32",
        ],
        "O",
    ),
    **dict.fromkeys(["hyperclovax", "flex_olmo", "afmoe", "gemma4_text-routed"], "SignedPerm"),
    **dict.fromkeys(["jais2", "codegen", "persimmon", "persimmon-plain", "biogpt", "gpt_neox_japanese"], "OFixingOnes"),
    **dict.fromkeys(["granitemoe_swa", "jetmoe"], "O"),
}  # fmt: skip
"""The largest group of every toy's stream (see `test_streams`)."""
STREAMS_WITHOUT_GAINS: dict[str, dict[str, str]] = {
    "nanochat": {"res": "O"},
    "hrm_text": {"res": "O"},
    "olmo": {"res": "OFixingOnes"},
    "olmo-clipped": {"res": "OFixingOnes"},
}
"""Of streams that no gain lies over: they turn as they are, and nothing has to be folded."""
UNBIASED = [
    "ministral",
    "ministral3",
    "cwm",
    "iquestcoder",
    "helium",
    "vaultgemma",
    "nanochat",
    "gpt_neox_japanese",
]
"""Toys without a bias of the values or of the output (see `test_law`)."""
SEEN_STREAMS = {
    "qwen3_vl_moe-published": {"res": "O", "vres": "Perm"},
    "qwen3_vl_moe": {"res": "O", "vres": "Perm"},
    "qwen3_5_text-ahead": {},
    "llama4": {"res": "O", "vres": "Perm"},
    "qwen3_5": {"res": "O", "vres": "OFixingOnes"},
    "qwen3_5_moe": {"res": "O", "vres": "OFixingOnes"},
}
"""The largest groups of streams where there are several."""
