"""Inputs of toys that ask for others than texts or images (see `toys.inputs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from toy_added import ADDED_INPUTS
from toy_finders import FINDER_INPUTS
from toy_gemmas import gemma3n_inputs, gemma4_inputs, gemma4_unified_inputs
from toy_giants import GIANT_INPUTS
from toy_hearing import HEARING_INPUTS
from toy_pairs import PAIR_INPUTS
from toy_pictures import PICTURE_INPUTS
from toy_reading import READING_INPUTS
from toy_recent import RECENT_INPUTS
from toy_seeing import IMAGE
from toy_sense_inputs import SENSE_INPUTS
from toy_signals import SIGNAL_INPUTS
from toy_sparse import SPARSE_INPUTS
from toy_speech import SPEECH_INPUTS
from toy_texts import TEXT_INPUTS
from toy_wrapped import WRAPPED_INPUTS


def _patches(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images as lists of patches, of two shapes, and texts."""
    seen = config.vision_config
    shape = (3, seen.num_patches, 3 * seen.patch_size**2)
    return {
        "pixel_values": torch.randn(shape, generator=rng, dtype=torch.float64),
        "spatial_shapes": torch.tensor([[2, 2], [1, 4], [2, 1]]),
        "pixel_attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]),
        "input_ids": torch.randint(1, 60, (3, 11), generator=rng),
    }


def _boxes(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, and where the words stand on a page."""
    corners = torch.randint(0, 8, (3, 11, 2), generator=rng)
    sizes = torch.randint(0, 8, (3, 11, 2), generator=rng)
    return {
        "input_ids": torch.randint(1, 60, (3, 11), generator=rng),
        "bbox": torch.cat([corners, corners + sizes], -1),
    }


def _video(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Films."""
    shape = (3, config.num_frames, 3, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(shape, generator=rng, dtype=torch.float64)}


def _hidden(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images, and the noise that decides which patches are hidden."""
    shape, patches = (3, 3, config.image_size, config.image_size), (config.image_size // config.patch_size) ** 2
    return {
        "pixel_values": torch.randn(shape, generator=rng, dtype=torch.float64),
        "noise": torch.rand((3, patches), generator=rng, dtype=torch.float64),
    }


def _images(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images whose height and width the config gives apart."""
    return {"pixel_values": torch.randn((3, 3, *config.image_size), generator=rng, dtype=torch.float64)}


def _spectra(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Spectrograms: times and frequencies."""
    return {
        "input_values": torch.randn((3, config.max_length, config.num_mel_bins), generator=rng, dtype=torch.float64)
    }


def _waves(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Waveforms."""
    return {"input_values": torch.randn((3, 70), generator=rng, dtype=torch.float64)}


def _heard(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Spectrograms and the words before."""
    return {
        "input_features": torch.randn((3, 20, config.input_feat_per_channel), generator=rng, dtype=torch.float64),
        "decoder_input_ids": torch.randint(1, 60, (3, 7), generator=rng),
    }


def _read(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images of writing and the words before."""
    side = config.encoder.image_size
    return {
        "pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64),
        "decoder_input_ids": torch.randint(1, 60, (3, 7), generator=rng),
    }


def _written(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Words, and what an encoder saw."""
    shape = (3, 5, config.cross_attention_hidden_size)
    return {
        "input_ids": torch.randint(1, 60, (3, 7), generator=rng),
        "encoder_hidden_states": torch.randn(shape, generator=rng, dtype=torch.float64),
    }


def _captioned(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images and what is said of them."""
    side = config.vision_config.image_size
    return {
        "input_ids": torch.randint(4, 60, (3, 7), generator=rng),
        "pixel_values": torch.randn((3, 2, 3, side, side), generator=rng, dtype=torch.float64),
    }


def _asked(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images, of which three tokens stand in the text, and what the queries are told."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1:4] = IMAGE
    found = {"input_ids": ids, "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)}
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.randint(4, 60, (3, 7), generator=rng)
    if config.model_type == "instructblip":
        found["qformer_input_ids"] = torch.randint(4, 60, (3, 5), generator=rng)
    return found


def _linked(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and the entities that stand in them."""
    places = torch.full((3, 2, 4), -1)
    places[:, 0, :2], places[:, 1, :3] = torch.tensor([1, 2]), torch.tensor([5, 6, 7])
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "entity_ids": torch.randint(1, 11, (3, 2), generator=rng),
        "entity_position_ids": places, "entity_attention_mask": torch.ones((3, 2), dtype=torch.long),
    }  # fmt: skip


def _attended(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, in which two words see all."""
    seeing = torch.zeros((3, 11), dtype=torch.long)
    seeing[:, [0, 4]] = 1
    return {"input_ids": torch.randint(2, 60, (3, 11), generator=rng), "global_attention_mask": seeing}


def _placed(
    pieces: int, tiled: bool = False, sized: bool = False
) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    """Texts with an image each, of which so many tokens stand behind the first one; images may come in tiles, with
    their sizes."""

    def made(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        ids = torch.randint(4, 60, (3, 16), generator=rng)
        ids[:, 1 : 1 + pieces] = IMAGE
        tiles = ((2,) if sized else (1,)) if tiled else ()
        pixels = torch.randn((3, *tiles, 3, 8, 8), generator=rng, dtype=torch.float64)
        sizes = {"image_sizes": torch.tensor([[8, 8]] * 3)} if sized else {}
        return {"input_ids": ids, "pixel_values": pixels, **sizes}

    return made


OWN_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    **TEXT_INPUTS,
    **ADDED_INPUTS,
    **RECENT_INPUTS,
    **GIANT_INPUTS,
    **SPARSE_INPUTS,
    **HEARING_INPUTS,
    **WRAPPED_INPUTS,
    **READING_INPUTS,
    "siglip2": _patches,
    "layoutlm": _boxes,
    "git": _captioned,
    "luke": _linked,
    "blip-2": _asked,
    "instructblip": _asked,
    "longformer": _attended,
    "speech_to_text": _heard,
    "vision-encoder-decoder": _read,
    "trocr": _written,
    "idefics3": _placed(4, tiled=True),
    "smolvlm": _placed(4, tiled=True),
    "aya_vision": _placed(4),
    "gemma3n": gemma3n_inputs,
    "gemma4": gemma4_inputs,
    "gemma4_unified": gemma4_unified_inputs,
    "cohere2_vision": _placed(4),
    "llava_onevision": _placed(10, tiled=True, sized=True),
    **PICTURE_INPUTS,
    **FINDER_INPUTS,
    **SIGNAL_INPUTS,
    **SENSE_INPUTS,
    **PAIR_INPUTS,
    **SPEECH_INPUTS,
    "videomae": _video,
    "vit_mae": _hidden,
    "yolos": _images,
    "audio-spectrogram-transformer": _spectra,
    **dict.fromkeys(["wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio"], _waves),
}
"""Inputs of models that ask for others than texts or images, by ``model_type``."""
