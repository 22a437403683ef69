"""Families of `toy_gemmas` whose saved names are tried with every toy alone (see `test_names`), and their streams
(see `test_streams`)."""

from __future__ import annotations

from typing import Any

from toy_gemmas import (
    GEMMA3N_EARS,
    GEMMA3N_EYES,
    GEMMA4_EARS,
    GEMMA4_EYES,
    READ,
    UNIFIED,
    UNIFIED_EARS,
    UNIFIED_EYES,
    WRITTEN,
)
from toy_languages import GEMMA3N, GEMMA4

SEEN = ["Model", "ForConditionalGeneration"]
GEMMA_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "T5Gemma": (
        {"encoder": READ, "decoder": WRITTEN, "vocab_size": 67},
        ["Model", "ForConditionalGeneration", "ForSequenceClassification", "ForTokenClassification"],
    ),
    "Gemma3n": ({"text_config": GEMMA3N, "vision_config": GEMMA3N_EYES, "audio_config": GEMMA3N_EARS}, SEEN),
    "Gemma3nAudio": (GEMMA3N_EARS, ["Encoder"]),
    "Gemma4": ({"text_config": GEMMA4, "vision_config": GEMMA4_EYES, "audio_config": GEMMA4_EARS}, SEEN),
    "Gemma4Vision": (GEMMA4_EYES, ["Model"]),
    "Gemma4Audio": (GEMMA4_EARS, ["Model"]),
    "Gemma4Unified": ({"text_config": UNIFIED, "vision_config": UNIFIED_EYES, "audio_config": UNIFIED_EARS}, SEEN),
    "Gemma4UnifiedText": (UNIFIED, ["Model"]),
}
GEMMA_STREAMS: dict[str, dict[str, str]] = {
    **{
        name: dict.fromkeys(["eres", "dres"], "SignedPerm")
        for name in ("t5gemma", "t5gemma-tied", "t5gemma-labels")
    },
    **{
        name: {**dict.fromkeys(["res", "audio_res"], "SignedPerm"), "pl": "Perm"}
        for name in ("gemma3n", "gemma3n-tied")
    },
    **{name: {"res": "SignedPerm", "pl": "Perm"} for name in ("gemma3n_text", "gemma4_text")},
    "gemma4": {**dict.fromkeys(["res", "vision_res", "audio_res"], "SignedPerm"), "pl": "Perm"},
    "gemma4-clipped": {"res": "SignedPerm", "pl": "Perm", "vision_res": "Perm", "audio_res": "Perm"},
    "gemma4-routed": dict.fromkeys(["res", "vision_res"], "SignedPerm"),
    "gemma4_unified": {"res": "SignedPerm"},
}
"""The largest groups of the streams of every toy."""
