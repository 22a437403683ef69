"""Baidu's ERNIE 4.5, PaddleOCR and Qianfan."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, seen_inputs
from toy_models import ahead, causal, composed
from toy_settings import (
    COMPOSED_MODELS,
    GRID,
    HEADS,
    IMAGE,
    KNOWN,
    KNOWN_CAUSAL,
    LANGUAGE_MODELS,
    SECTIONS,
    TEXT,
    TOWER,
    TWO,
    Inputs,
)

ERNIE: dict[str, Any] = {
    **HEADS, "use_bias": True, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_layer_interval": 1,
}  # fmt: skip


def _ernie_ahead() -> Any:
    names = {
        "mtp_emb_norm": "model.norm.weight",
        "mtp_hidden_norm": "model.norm.weight",
        "mtp_linear_proj": "fused",
    }
    beside = {f"model.{name}.0.weight": like for name, like in names.items()}
    model = causal("Ernie4_5_Moe", ERNIE, moe_layer_start_index=0, moe_layer_end_index=0)
    return ahead(model, "model.layers.1.", "model.mtp_block.0.", beside)


QIANFAN: dict[str, Any] = {**TOWER, "image_size": [8, 8], "patch_size": [2, 2]}


def _qianfan() -> Any:
    config = tf.QianfanOCRConfig(
        text_config={**TWO, "model_type": "qwen3"}, vision_config=QIANFAN, image_token_id=IMAGE, image_seq_length=4
    )
    return tf.QianfanOCRForConditionalGeneration(config)


ERNIE_TEXT: dict[str, Any] = {
    **HEADS, "use_bias": True, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [20, 12], "moe_num_shared_experts": 2,
    "mlp_layer_types": ["dense", "sparse"], "rope_parameters": {**SECTIONS, "mrope_section": [1, 1, 2]},
}  # fmt: skip
ERNIE_EYE: dict[str, Any] = {**GRID, "hidden_size": 60, "intermediate_size": 44, "temporal_merge_size": 2}


def _ernie_vl() -> Any:
    config = tf.Ernie4_5_VLMoeConfig(
        text_config=ERNIE_TEXT, vision_config=ERNIE_EYE, image_token_id=IMAGE, video_token_id=64, image_start_token_id=65, image_end_token_id=66,
        video_start_token_id=62, video_end_token_id=63, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Ernie4_5_VLMoeForConditionalGeneration(config)


def _merged(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, of which one token stands for four patches."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1:5] = IMAGE
    return {
        "input_ids": ids, "pixel_values": torch.randn((3 * 16, 3 * 2 * 2), generator=rng, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 3), "mm_token_type_ids": (ids == IMAGE).int(),
        "moe_mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def _in_squares(_: Any, rng: torch.Generator) -> Inputs:
    """Images as square patches, all in a row."""
    ids = drawn_words(rng, 4)
    return {
        "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, 3, 2, 2), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


PADDLEOCR_VL: dict[str, Any] = {
            "text_config": {**TEXT, **KNOWN, "use_bias": True, "rope_parameters": SECTIONS}, "vision_config": TOWER, "image_token_id": IMAGE,
            "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66, "tie_word_embeddings": False,
        }  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "ernie4_5": (lambda: causal("Ernie4_5", KNOWN_CAUSAL, use_bias=True), 1e-5),
    "ernie4_5_moe": (lambda: causal("Ernie4_5_Moe", ERNIE), 1e-5),
    "ernie4_5_moe-ahead": (_ernie_ahead, 1e-5),
    "paddleocr_vl": (partial(composed, "PaddleOCRVL", PADDLEOCR_VL), 1e-5),
    "qianfan_ocr": (_qianfan, 1e-5),
    "ernie4_5_vl_moe": (_ernie_vl, 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Ernie4_5": (KNOWN_CAUSAL, LANGUAGE_MODELS),
    "Ernie4_5_Moe": (ERNIE, LANGUAGE_MODELS),
    "PaddleOCRVL": (PADDLEOCR_VL, COMPOSED_MODELS),
    "PaddleOCRText": (TEXT, []),
    "PaddleOCRVision": (TOWER, ["Transformer"]),
    "QianfanOCR": (
        {"text_config": {**TWO, "model_type": "qwen3"}, "vision_config": QIANFAN},
        ["ForConditionalGeneration"],
    ),
    "Ernie4_5_VLMoe": ({"text_config": ERNIE_TEXT, "vision_config": ERNIE_EYE}, COMPOSED_MODELS),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["ernie4_5", "ernie4_5_moe"], "O"),
    "ernie4_5_moe-ahead": {},
    "paddleocr_vl": {"res": "O", "vision_res": "Perm"},
    "qianfan_ocr": {"res": "O", "vres": "Perm"},
    "ernie4_5_vl_moe": {"res": "SignedPerm", "vres": "OFixingOnes", "sout": "Perm", "tout": "Perm"},
}

IDLE = {
    ("qianfan_ocr", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "ernie4_5_vl_moe": _merged,
    "paddleocr_vl": _in_squares,
    "qianfan_ocr": seen_inputs,
}

CONVERTED = {"ernie4_5_moe", "ernie4_5_moe-ahead", "qianfan_ocr", "ernie4_5_vl_moe"}

MUTANTS = [
    mutant(
        "ernie4_5",
        "half-split pairs",
        "c",
        "[pair c | rest] => [c pair | rest]",
        "[pair c' | rest'] => [c' pair | rest']",
    ),
    mutant(
        "ernie4_5_moe", "half-split pairs", "c", "(kv g pair c) => (kv g c pair)", "(kv pair c') => (kv c' pair)"
    ),
    mutant(
        "ernie4_5_moe",
        "the router's bias forgotten",
        "e",
        "e_score_correction_bias 1 e => e_score_correction_bias 1 rows",
    ),
    mutant(
        "qianfan_ocr",
        "fused head by head",
        "vh",
        "[vh vqk vsg | vh vqk' vsg' | vh vov] (vres => (vh [vqk vsg | vqk' vsg' | vov]) (vres",
    ),
    mutant("qianfan_ocr", "a layer scale on the reader's side", "vs1", "ls1 diag(vres vs1') => ls1 diag(vres vs1)"),
    mutant(
        "qianfan_ocr",
        "the neighbours' coordinates fast",
        "vres",
        "(project pu) (merge vres)' => (project pu) (vres merge)'",
    ),
    mutant(
        "ernie4_5_vl_moe", "half-split pairs", "c", "(kv g pair c) => (kv g c pair)", "(kv pair c') => (kv c' pair)"
    ),
    mutant(
        "ernie4_5_vl_moe",
        "one moment forgotten",
        "sout",
        "tneuron [sout' | sout'] => tneuron [sout' | rows]",
        "size tout => size rows = sout\nsize tout",
    ),
    mutant(
        "ernie4_5_vl_moe",
        "the router of pieces forgotten",
        "n2",
        "gate.weight_1 (res n2)' pieces => gate.weight_1 res' pieces",
    ),
    mutant("paddleocr_vl", "neighbours fast", "vision_res", "(merge vision_res np)' => (vision_res merge np)'"),
    mutant(
        "paddleocr_vl",
        "the tower's last gain folded past a norm",
        "vision_nf",
        "of paddleocr_vl_vision without nf => of paddleocr_vl_vision",
    ),
    mutant(
        "paddleocr_vl",
        "interleaved pairs",
        "c",
        "(kv g c pair) => (kv g pair c)",
        "(kv c' pair) => (kv pair c')",
        part="paddleocr_vl_text",
    ),
]
