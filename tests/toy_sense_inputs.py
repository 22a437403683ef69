"""Inputs of the toys of `toy_senses`: images, films and sounds in layouts of their own (see `toys.inputs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from toy_draws import drawn_numbers, drawn_words
from toy_seeing import IMAGE

Inputs = dict[str, torch.Tensor]


def _heard(pieces: int, mask: str | None = None) -> Callable[[Any, torch.Generator], Inputs]:
    """Sixteen moments of sound, of which so many tokens stand in the text."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        masks = {mask: torch.ones((3, 16), dtype=torch.long)} if mask else {}
        return {"input_ids": drawn_words(rng, pieces), "input_features": drawn_numbers(rng, 3, 7, 16), **masks}

    return made


def _in_patches(_: Any, rng: torch.Generator) -> Inputs:
    """Images as lists of patches, of two shapes."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 16, 12), "spatial_shapes": torch.tensor([[4, 4], [2, 8], [8, 2]]),
        "pixel_attention_mask": torch.ones((3, 16), dtype=torch.long),
    }  # fmt: skip


def _in_pixels(pieces: int, tiles: int = 0, **more: torch.Tensor) -> Callable[[Any, torch.Generator], Inputs]:
    """Images of which so many tokens stand in the text; in tiles, if there are any."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        shape = (3, tiles, 3, 8, 8) if tiles else (3, 3, 8, 8)
        return {"input_ids": drawn_words(rng, pieces), "pixel_values": drawn_numbers(rng, *shape), **more}

    return made


def _in_grids(_: Any, rng: torch.Generator) -> Inputs:
    """Images as grids of patches, image by image."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 16, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


def _in_rows(_: Any, rng: torch.Generator) -> Inputs:
    """Images as rows of patches."""
    return {"input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 4, 12)}


def _in_tiles(_: Any, rng: torch.Generator) -> Inputs:
    """Images in one or two tiles, at which all words look."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "pixel_values": drawn_numbers(rng, 3, 1, 2, 3, 8, 8),
        "aspect_ratio_ids": torch.tensor([[1], [2], [3]]), "aspect_ratio_mask": torch.tensor([[[1, 0]], [[1, 1]], [[1, 1]]]),
        "cross_attention_mask": torch.tensor([[[[1, 0]]] * 11, [[[1, 1]]] * 11, [[[1, 1]]] * 11]),
    }  # fmt: skip


def _in_one_grid(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, all in a row."""
    ids = drawn_words(rng, 4)
    return {
        "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def seen_and_heard(_: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image each, as patches, and a sound, as moments of frequencies."""
    found = _in_one_grid(_, rng)
    found["input_ids"] = torch.randint(4, 60, (3, 18), generator=rng)
    found["input_ids"][:, 1:6] = torch.tensor([65, *[IMAGE] * 4])
    found["input_ids"][:, 8:13] = torch.tensor([66, *[62] * 4])
    del found["mm_token_type_ids"]
    return {
        **found,
        "input_features": drawn_numbers(rng, 3, 7, 16),
        "feature_attention_mask": torch.ones((3, 16), dtype=torch.long),
    }


def _in_features(_: Any, rng: torch.Generator) -> Inputs:
    """Moments of frequencies, of which the last sound has fewer."""
    mask = torch.ones((3, 12), dtype=torch.long)
    mask[2, 9:] = 0
    return {"input_features": drawn_numbers(rng, 3, 12, 10), "attention_mask": mask}


def _as_waves(_: Any, rng: torch.Generator) -> Inputs:
    return {"input_values": drawn_numbers(rng, 3, 70)}


def _as_long_waves(_: Any, rng: torch.Generator) -> Inputs:
    """Sounds long enough for three convolutions, and the words before."""
    return {
        "input_values": drawn_numbers(rng, 3, 2800),
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }


def _in_merged_grids(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches of one moment, four to be merged."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 48, 12), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "image_merge_sizes": torch.tensor([2, 2, 2]),
    }  # fmt: skip


def _in_squares(_: Any, rng: torch.Generator) -> Inputs:
    """Images as square patches, all in a row."""
    ids = drawn_words(rng, 4)
    return {
        "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, 3, 2, 2), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def _in_stages(_: Any, rng: torch.Generator) -> Inputs:
    """Images, of which five tokens stand in the text, and the words before."""
    return {**_in_pixels(5)(_, rng), "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng)}


def _in_latents(_: Any, rng: torch.Generator) -> Inputs:
    """Images, for which three latents stand in the text."""
    found = _in_pixels(3)(_, rng)
    return {**found, "image_embeds_position_mask": (found["input_ids"] == IMAGE).long()}


def _as_film(_: Any, rng: torch.Generator) -> Inputs:
    """Films of two images, and what the queries are told."""
    told = torch.randint(4, 60, (3, 5), generator=rng)
    return {
        "input_ids": drawn_words(rng, 6),
        "pixel_values": drawn_numbers(rng, 3, 2, 3, 8, 8),
        "qformer_input_ids": told,
    }


SENSE_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "qwen2_audio": _heard(4, "feature_attention_mask"),
    "voxtral": _heard(2),
    "audioflamingo3": _heard(4, "input_features_mask"),
    "lfm2_vl": _in_patches,
    "lighton_ocr": _in_pixels(4, image_sizes=torch.tensor([[8, 8]] * 3)),
    "deepseek_vl": _in_pixels(16),
    "modernvbert": _in_pixels(4, 1),
    "colpali": _in_pixels(16),
    "colqwen2": _in_grids,
    "colmodernvbert": _in_pixels(4, 1),
    "fuyu": _in_rows,
    "shieldgemma2": _in_pixels(4),
    "mllama": _in_tiles,
    "kosmos-2": _in_latents,
    "florence2": _in_stages,
    "got_ocr2": _in_pixels(1),
    "video_llama_3": _in_merged_grids,
    "paddleocr_vl": _in_squares,
    "instructblipvideo": _as_film,
    "qwen2_5_omni_thinker": seen_and_heard,
    "wav2vec2-bert": _in_features,
    **dict.fromkeys(["wav2vec2-conformer", "sew"], _as_waves),
    "moonshine": _as_long_waves,
    "idefics2": _in_pixels(3, 1),
    **dict.fromkeys(["glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr"], _in_one_grid),
}
