"""Inputs of toys that several families share, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from toy_settings import IMAGE, Inputs


def drawn_numbers(rng: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal numbers, float64."""
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def drawn_words(rng: torch.Generator, pieces: int, token: int = IMAGE) -> torch.Tensor:
    """Three texts, int64 [3, pieces + 9]; behind the first token stand so many that stand for what is seen or
    heard."""
    ids = torch.randint(4, 60, (3, pieces + 9), generator=rng)
    ids[:, 1 : 1 + pieces] = token
    return ids


def in_codes(_: Any, rng: torch.Generator) -> Inputs:
    """Images, of which sixteen codes stand in the text."""
    return {"input_ids": drawn_words(rng, 16), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8)}


def placed(
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


def seen_pictures(side: int, **more: torch.Tensor) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    return lambda _, rng: {
        "pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64),
        **more,
    }


def heard_in_pieces(pieces: int, mask: str | None = None) -> Callable[[Any, torch.Generator], Inputs]:
    """Sixteen moments of sound, of which so many tokens stand in the text."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        masks = {mask: torch.ones((3, 16), dtype=torch.long)} if mask else {}
        return {"input_ids": drawn_words(rng, pieces), "input_features": drawn_numbers(rng, 3, 7, 16), **masks}

    return made


def in_pixels(pieces: int, tiles: int = 0, **more: torch.Tensor) -> Callable[[Any, torch.Generator], Inputs]:
    """Images of which so many tokens stand in the text; in tiles, if there are any."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        shape = (3, tiles, 3, 8, 8) if tiles else (3, 3, 8, 8)
        return {"input_ids": drawn_words(rng, pieces), "pixel_values": drawn_numbers(rng, *shape), **more}

    return made


def in_one_grid(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches, all in a row."""
    ids = drawn_words(rng, 4)
    return {
        "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }  # fmt: skip


def in_cubes(_: Any, rng: torch.Generator) -> Inputs:
    """Images as patches of two frames, all in a row."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 48, 24), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


def seen_as_patches(depth: int) -> Callable[[Any, torch.Generator], Inputs]:
    """Texts with an image each, as patches of so many numbers, all in a row."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        ids = drawn_words(rng, 4)
        return {
            "input_ids": ids, "pixel_values": drawn_numbers(rng, 48, depth), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
            "mm_token_type_ids": (ids == IMAGE).int(),
        }  # fmt: skip

    return made


PIECES = 4
"""Tokens that stand for one image in each of these toys: 16 patches, four at once."""


def seen_inputs(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Three texts with an image each; behind the first token stand the tokens of the image."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1 : 1 + PIECES] = IMAGE
    if hasattr(config.vision_config, "temporal_patch_size"):
        patches = torch.randn((3 * 16, 3 * 2 * 2 * 2), generator=rng, dtype=torch.float64)
        grid = torch.tensor([[1, 4, 4]] * 3)
        return {
            "input_ids": ids, "pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": (ids == IMAGE).int(),
        }  # fmt: skip
    pixels = torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)
    sizes = {"image_sizes": torch.tensor([[8, 8]] * 3)} if config.model_type == "mistral3" else {}
    return {"input_ids": ids, "pixel_values": pixels, **sizes}


def place_images(config: Any, ids: torch.Tensor) -> None:
    """The tokens that stand for pieces of the image, behind the first token; nowhere else is there one."""
    patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    ids[ids == config.image_token_id] += 1
    ids[:, 1 : 1 + getattr(config, "mm_tokens_per_image", patches)] = config.image_token_id
