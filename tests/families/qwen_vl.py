"""Qwen's models that see, and their towers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, seen_inputs
from toy_models import composed
from toy_settings import (
    COMPOSED_MODELS,
    GRID,
    IMAGE,
    KNOWN,
    MIXED,
    NEXT,
    NEXT_MIXED,
    QWEN4,
    SECTIONS,
    SECTIONS_OF_A_PART,
    TEXT,
    WINDOWED,
    Inputs,
)


def _qwen(kind: str, text: dict[str, Any], vision: dict[str, Any]) -> Any:
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=66, tie_word_embeddings=False,
    )  # fmt: skip
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


EYES: dict[str, Any] = {
    **GRID,
    "hidden_size": 60,
    "out_hidden_size": 48,
    "intermediate_size": 44,
    "num_position_embeddings": 16,
}


def _seeing(kind: str, text: dict[str, Any], **vision: Any) -> Any:
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config={**EYES, **vision}, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=66, tie_word_embeddings=False,
    )  # fmt: skip
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


def _published() -> Any:
    """Qwen3-VL-MoE as Qwen published it: rows and columns of the experts are exchanged."""
    model: Any = _seeing(
        "Qwen3VLMoe", {**MIXED, "rope_parameters": SECTIONS, "attention_bias": True}, deepstack_visual_indexes=[0]
    )

    def save(folder: Path) -> None:
        save_held(folder)
        held = load_file(folder / "model.safetensors")
        turned = {k: t.mT.contiguous() if ".experts." in k else t for k, t in held.items()}
        save_file(turned, folder / "model.safetensors", metadata={"format": "pt"})

    save_held, model.save_pretrained = model.save_pretrained, save
    return model


SPOKEN = {**TEXT, "rope_parameters": SECTIONS}
QWEN4_SEEN: dict[str, Any] = {
    "text_config": {**QWEN4, "rope_parameters": {**SECTIONS, "partial_rotary_factor": 1.0}},
    "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16},
}  # fmt: skip


def _qwen4() -> Any:
    config = tf.Qwen4ExpConfig(
        **QWEN4_SEEN, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=62, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.Qwen4ExpForConditionalGeneration(config)


def _in_grids(_: Any, rng: torch.Generator) -> Inputs:
    """Images as grids of patches, image by image."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 16, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


QWEN2_VL: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS},
    "vision_config": {**GRID, "embed_dim": 60, "hidden_size": 48, "mlp_ratio": 2},
    "image_token_id": IMAGE, "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66, "tie_word_embeddings": False,
}  # fmt: skip
COLQWEN2: dict[str, Any] = {"vlm_config": QWEN2_VL, "embedding_dim": 20}  # fmt: skip


def _alone(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, for a tower alone."""
    return {"hidden_states": drawn_numbers(rng, 48, 24), "grid_thw": torch.tensor([[1, 4, 4]] * 3)}


MORE_TOYS: dict[str, Toy] = {
    "qwen2_vl": (
        lambda: _qwen(
            "Qwen2VL",
            {**TEXT, "rope_parameters": SECTIONS},
            {**GRID, "embed_dim": 60, "hidden_size": 48, "mlp_ratio": 2},
        ),
        1e-5,
    ),
    "qwen2_5_vl": (
        lambda: _qwen(
            "Qwen2_5_VL",
            {**TEXT, "rope_parameters": SECTIONS},
            {
                **GRID,
                "hidden_size": 60,
                "out_hidden_size": 48,
                "intermediate_size": 44,
                "window_size": 8,
                "fullatt_block_indexes": [1],
            },
        ),
        1e-5,
    ),
    "qwen3_vl": (
        lambda: _qwen(
            "Qwen3VL",
            {**TEXT, "rope_parameters": SECTIONS},
            {
                **GRID,
                "hidden_size": 60,
                "out_hidden_size": 48,
                "intermediate_size": 44,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
        ),
        1e-5,
    ),
    "qwen3_vl_moe": (
        lambda: _seeing(
            "Qwen3VLMoe",
            {**MIXED, "rope_parameters": SECTIONS, "attention_bias": True},
            deepstack_visual_indexes=[0],
        ),
        1e-5,
    ),
    "qwen3_vl_moe-published": (_published, 1e-5),
    "qwen3_5": (lambda: _seeing("Qwen3_5", {**NEXT, "rope_parameters": SECTIONS_OF_A_PART}), 1e-5),
    "qwen3_5_moe": (lambda: _seeing("Qwen3_5Moe", {**NEXT_MIXED, "rope_parameters": SECTIONS_OF_A_PART}), 2e-5),
    "colqwen2": (partial(composed, "ColQwen2", COLQWEN2, "ForRetrieval"), 1e-5),
    "qwen4_exp": (_qwen4, 1e-5),
    "qwen2_5_vl_vision": (
        lambda: tf.Qwen2_5_VisionTransformerPretrainedModel(tf.Qwen2_5_VLVisionConfig(**WINDOWED)),
        1e-5,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "Qwen2VLText": (SPOKEN, ["Model"]),
    "Qwen2_5_VLText": (SPOKEN, ["Model"]),
    "Qwen3VLText": (SPOKEN, ["Model"]),
    "Qwen2VL": (
        {"text_config": SPOKEN, "vision_config": {**GRID, "embed_dim": 60, "hidden_size": 48}},
        COMPOSED_MODELS,
    ),
    "Qwen2_5_VL": (
        {
            "text_config": SPOKEN,
            "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44},
        },
        COMPOSED_MODELS,
    ),
    "Qwen3VL": (
        {
            "text_config": SPOKEN,
            "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "deepstack_visual_indexes": [0]},
        },
        COMPOSED_MODELS,
    ),
    "Qwen3VLMoeText": (MIXED, []),
    "Qwen3VLMoe": (
        {
            "text_config": {**MIXED, "rope_parameters": SECTIONS},
            "vision_config": {**EYES, "deepstack_visual_indexes": [0]},
        },
        COMPOSED_MODELS,
    ),
    "Qwen3_5": (
        {"text_config": {**NEXT, "rope_parameters": SECTIONS_OF_A_PART}, "vision_config": EYES},
        COMPOSED_MODELS,
    ),
    "Qwen3_5Moe": (
        {"text_config": {**NEXT_MIXED, "rope_parameters": SECTIONS_OF_A_PART}, "vision_config": EYES},
        COMPOSED_MODELS,
    ),
    "ColQwen2": (COLQWEN2, ["ForRetrieval"]),
    "Qwen4Exp": (QWEN4_SEEN, COMPOSED_MODELS),
    "Qwen2VLVision": ({**GRID, "embed_dim": 60, "hidden_size": 48, "mlp_ratio": 2}, []),
    "Qwen2_5_VLVision": (WINDOWED, []),
}

STREAMS: dict[str, Streams] = {
    "qwen2_vl": {"res": "O", "vision_res": "OFixingOnes"},
    "qwen2_5_vl": {"res": "O", "vision_res": "O"},
    **{key: {"res": "O", "vres": "Perm"} for key in ["qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe-published"]},
    **{key: {"res": "O", "vres": "OFixingOnes"} for key in ["qwen3_5", "qwen3_5_moe", "colqwen2"]},
    "qwen4_exp": {"res": "Perm", "vres": "OFixingOnes"},
    "qwen2_5_vl_vision": {"res": "O"},
}

IDLE = {
    ("colqwen2", "vb"),
    ("qwen2_5_vl", "vb"),
    ("qwen2_vl", "vb"),
    ("qwen3_vl", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "qwen2_5_vl_vision": _alone,
    "colqwen2": _in_grids,
    **dict.fromkeys(
        ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp"], seen_inputs
    ),
}

CONVERTED = {"qwen3_5_moe", "qwen4_exp"}

MUTANTS = [
    mutant(
        "qwen2_vl",
        "patches fast in the projector",
        "vision_res",
        "(merge res nf)' => (res nf merge)'",
        part="qwen2_vl_vision",
    ),
    mutant(
        "qwen2_vl",
        "any matrix on a rotated pair",
        "vision_c",
        "space c as qk: Complex => space c as qk: GL",
        part="qwen2_vl_vision",
    ),
    mutant(
        "qwen2_5_vl",
        "gate scaled",
        "vision_u",
        "gate_proj.weight ff => gate_proj.weight (ff u)",
        part="qwen2_5_vl_vision",
    ),
    mutant(
        "qwen3_vl",
        "a deep projector reads other coordinates",
        "vres",
        "mlp.0).weight deep (merge vres)' => mlp.0).weight deep (merge other)",
        "size deep => size other = vres\nsize deep",
    ),
    mutant(
        "qwen3_vl",
        "a deep projector writes other coordinates",
        "res",
        "mlp.2).weight res deep' => mlp.2).weight other deep'",
    ),
    mutant("qwen3_vl_moe", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]", part="qwen3_vl_moe_text"),
    mutant(
        "qwen3_vl_moe",
        "fused neuron by neuron",
        "ff",
        "[ff | ff u] => (ff 2)",
        "space u as scale: Scale[l, e, ff]\n => ",
        "(ff u') => ff'",
        "(ff u) => ff",
        part="qwen3_vl_moe_text",
    ),
    mutant(
        "qwen3_vl_moe-published",
        "gate and up mistaken",
        "u",
        "[ff | ff u] => [ff u | ff]",
        part="qwen3_vl_moe_text",
    ),
    mutant(
        "qwen3_vl_moe",
        "a deep projector writes other coordinates",
        "res",
        "mlp.2).weight res deep' => mlp.2).weight other deep'",
    ),
    mutant("qwen3_5", "patches fast in the projector", "vres", "(merge vres vnf)' => (vres vnf merge)'"),
    mutant("qwen3_5", "any matrix on a rotated pair", "vc", "space vc as qk: Complex => space vc as qk: GL"),
    mutant("qwen3_5_moe", "the projector past the gain", "vnf", "(merge vres vnf)' => (merge vres)'"),
    mutant(
        "qwen3_5_moe",
        "router forgotten",
        "e",
        "mlp.gate.weight e (res n2)' => mlp.gate.weight rows (res n2)'",
        part="qwen3_5_moe_text",
    ),
    mutant(
        "qwen2_5_vl_vision",
        "past the gain of the projector's norm",
        "nf",
        "project (merge res nf)' => project (merge res)'",
    ),
    mutant("qwen2_5_vl_vision", "key not dual", "c", "h g c pair | h c' pair | => h g c pair | h c pair |"),
    mutant(
        "qwen2_5_vl",
        "the tower writes other coordinates",
        "res",
        "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight other vision_project'",
    ),
    mutant(
        "qwen2_vl",
        "the projector's neurons not permuted back",
        "vision_project",
        "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight res other",
    ),
]
