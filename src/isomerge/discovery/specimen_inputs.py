"""Inputs of specimens: tokens, pixels or sounds; for composites tokens with room among them for the features of
images."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from isomerge.config.config_parts import flattened
from isomerge.discovery.shrinking import Scale
from isomerge.discovery.specimen import double_precision

MANY = 40
"""Rows of the input for moments: a classifier with two labels has to give more numbers than there are heads."""
ROOM = 40
"""The most tokens that the features of a tiny image take: sixteen patches, of two crops, and ends of lines."""
SIDE = 32
"""Of images whose config does not say it."""
FRAMES = 12
"""How many vectors a row of sound gives."""
BANDS = "input_feat_per_channel"
"""A key for the bands of a spectrogram of which each row is a time."""
BOX, BOX_PLACES = "bbox", "max_2d_position_embeddings"
"""What classes call the boxes of tokens, and a key for how many places an edge may have."""
PATHS = {
    "xpath_tags_seq": "max_xpath_tag_unit_embeddings",
    "xpath_subs_seq": "max_xpath_subs_unit_embeddings",
}
"""What a class calls the tags that tokens stand in and their numbers, and the keys for how many there are."""
IMAGE_TOKENS = ("image_token_id", "image_token_index", "img_token_id", "image_pad_token_id")


def inputs_of(module: Any, config: Any, scale: Scale, seed: int) -> list[dict[str, Tensor]]:
    """Two inputs of different shapes, the second one with padding where the model takes a mask; and one of many
    rows."""
    rng = torch.Generator().manual_seed(seed + 1)
    inputs = InputsOf.of(module, config)
    tokens = (5, scale.vocabulary - 9)
    drawn = [inputs.drawn(rows, length, tokens, rng) for rows, length in ((3, 11), (2, 7), (MANY, 5))]
    if "attention_mask" in inputs.takes and "input_ids" in drawn[1]:
        mask = torch.ones_like(drawn[1]["input_ids"])
        mask[0, -2:] = 0
        drawn[1]["attention_mask"] = mask
    return drawn


@dataclass(frozen=True)
class InputsOf:
    """What the forward pass of a class takes, and how it takes images."""

    module: Any
    config: Any
    keys: Mapping[str, Any]
    images: _Images | None
    """Of a class that takes them beside texts."""

    @classmethod
    def of(cls, module: Any, config: Any) -> InputsOf:
        """Tries layouts of images where the class takes them beside texts."""
        keys = flattened(config.to_dict())
        takes = inspect.signature(module.forward).parameters
        both = {"pixel_values", "input_ids"} <= takes.keys()
        return cls(module, config, keys, _images_of(module, keys) if both else None)

    @property
    def takes(self) -> Mapping[str, Any]:
        """The arguments of the forward pass."""
        return inspect.signature(self.module.forward).parameters

    def drawn(self, rows: int, length: int, tokens: tuple[int, int], rng: Generator) -> dict[str, Tensor]:
        """Random inputs of one shape; tokens within a range."""
        module, config = self.module, self.config
        ids = torch.randint(*tokens, (rows, length), generator=rng)
        if self.images is not None:
            return {**self.images.beside(module, self.keys, ids, rng), **self._on_page(rows, length, rng)}
        if module.main_input_name == "input_values":
            return {"input_values": _noise((rows, *_sounds(config)), rng)}
        if module.main_input_name == "pixel_values":
            size = getattr(config, "image_size", SIDE)
            height, wide = size if isinstance(size, (list, tuple)) else (size, size)
            return {"pixel_values": _noise((rows, getattr(config, "num_channels", 3), height, wide), rng)}
        if module.main_input_name == "input_features":
            long = 2 * config.max_source_positions
            shape = (long, bands) if (bands := getattr(config, BANDS, None)) else (config.num_mel_bins, long)
            return {"input_features": _noise((rows, *shape), rng), "decoder_input_ids": ids}
        drawn = {"input_ids": ids, **self._on_page(rows, length, rng)}
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in self.takes:
            drawn["decoder_input_ids"] = torch.randint(*tokens, (rows, length - 2), generator=rng)
        return drawn

    def _on_page(self, rows: int, length: int, rng: Generator) -> dict[str, Tensor]:
        """Where tokens stand on a page: the left, upper, right and lower edges of their boxes (LayoutLM, LiLT), or
        which of what tags they are in (MarkupLM)."""
        inputs = {}
        if BOX in self.takes and (places := self.keys.get(BOX_PLACES)):
            edges = torch.randint(0, places, (rows, length, 2, 2), generator=rng)  # both ends of both directions
            inputs[BOX] = edges.sort(2).values.flatten(2)
        for name, count in PATHS.items():
            if name in self.takes and (units := self.keys.get(count)):
                inputs[name] = torch.randint(0, units, (rows, length, self.keys["max_depth"]), generator=rng)
        return inputs

    def covering(self, vocabulary: int, seed: int, rows: int, length: int) -> list[dict[str, Tensor]]:
        """Inputs of many rows, in which all tokens, types and places occur, as far as rows and length go; and texts
        without their images, where a class that takes both reads them by another way."""
        inputs = [self._covering(vocabulary, seed, rows, length)]
        if self.images is not None and self.images.token is None:
            alone = {
                name: value[: max(2, rows // 4)] for name, value in inputs[0].items() if name != "pixel_values"
            }
            inputs += [alone] if _refusal(self.module, alone) is None else []
        return inputs

    def _covering(self, vocabulary: int, seed: int, rows: int, length: int) -> dict[str, Tensor]:
        rng = torch.Generator().manual_seed(seed + 2)
        drawn = self.drawn(rows, length, (0, vocabulary), rng)
        types = next((v for k, v in self.keys.items() if k.endswith("type_vocab_size") and isinstance(v, int)), 0)
        if "token_type_ids" in self.takes and types > 1 and "input_ids" in drawn:
            drawn["token_type_ids"] = torch.randint(0, types, drawn["input_ids"].shape, generator=rng)
        return drawn


def _sounds(config: Any) -> tuple[int, ...]:
    """The shape of one row of sound: a spectrogram, or so many samples that convolutions leave FRAMES of them."""
    if (bands := getattr(config, "num_mel_bins", None)) is not None:
        return config.max_length, bands
    samples = FRAMES
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        samples = (samples - 1) * stride + kernel
    return (samples,)


def _noise(shape: tuple[int, ...], rng: Generator) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


@dataclass(frozen=True)
class _Images:
    """How a class takes its images: which of the layouts, and how many tokens stand for one row's."""

    layout: int
    count: int
    token: int | None

    def beside(self, module: Any, keys: Mapping[str, Any], ids: Tensor, rng: Generator) -> dict[str, Tensor]:
        """Tokens with room among them, and one image for each row."""
        takes = inspect.signature(module.forward).parameters
        images = list(_layouts(keys, len(ids), takes, rng))[self.layout]
        if self.token is None:
            return {"input_ids": _ended(ids, keys), **images}
        room = torch.full((len(ids), self.count), self.token)
        inputs = {"input_ids": torch.cat([ids[:, :1], room, ids[:, 1:]], 1), **images}
        if "mm_token_type_ids" in takes:
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == self.token).long()
        return inputs


def _images_of(module: Any, keys: Mapping[str, Any]) -> _Images:
    """The first layout, with the most tokens for an image's features, that a model runs on.

    Raises:
        ValueError: there is none.
    """
    token = next((keys[k] for k in IMAGE_TOKENS if keys.get(k) is not None), None)
    ids, rng, first = torch.full((1, 7), 6), torch.Generator().manual_seed(0), None
    layouts = len(list(_layouts(keys, 1, inspect.signature(module.forward).parameters, rng)))
    for layout in range(layouts):
        for count in (0,) if token is None else range(ROOM, 0, -1):
            images = _Images(layout, count, token)
            if (error := _refusal(module, images.beside(module, keys, ids, rng))) is None:
                return images
            first = first or error
    raise ValueError(f"no layout of images that discovery knows fits: {first}")


def _refusal(module: Any, inputs: Mapping[str, Tensor]) -> Exception | None:
    """What a model raises for inputs, None where it runs on them."""
    try:
        with torch.no_grad(), double_precision():
            module(**inputs)
    except Exception as error:  # whatever its code raises for a layout that is not its own
        return error
    return None


def _ended(ids: Tensor, keys: Mapping[str, Any]) -> Tensor:
    """Texts with the one token that a tower of texts is read at, here and there: always in one place, what its row
    of embeddings has could as well be in that place's."""
    end = next((v for k, v in keys.items() if k.endswith("eos_token_id") and isinstance(v, int)), None)
    if end is None:
        return ids
    ended = ids.masked_fill(ids == end, end - 1 if end > 5 else end + 5)
    rows = torch.arange(len(ids))
    ended[rows, ids.shape[1] - 1 - rows % (ids.shape[1] - 1)] = end
    return ended


def _layouts(
    keys: Mapping[str, Any], rows: int, takes: Mapping[str, Any], rng: Generator
) -> Iterator[dict[str, Tensor]]:
    """How classes want their images: one a row, a list of one or two a row with their sizes, or all patches in a
    row."""
    by_name = {key.rpartition(".")[2]: value for key, value in keys.items() if value is not None}
    side = by_name.get("image_size", 8)
    side = side[0] if isinstance(side, (list, tuple)) else side
    channels, patch = by_name.get("num_channels", by_name.get("in_channels", 3)), by_name.get("patch_size", 4)
    sizes = {"image_sizes": torch.tensor([[side, side]] * rows)} if "image_sizes" in takes else {}
    if "image_grid_thw" in takes:
        across = 8 // patch * by_name.get("spatial_merge_size", 1)
        volume = channels * by_name.get("temporal_patch_size", 1) * patch**2
        yield {
            "pixel_values": _noise((rows * across**2, volume), rng),
            "image_grid_thw": torch.tensor([[1, across, across]] * rows),
        }
    for shape in ((rows,), (rows, 1), (rows, 2)):
        pixels = _noise((*shape, channels, side, side), rng)
        yield {"pixel_values": pixels}
        if sizes:
            yield {"pixel_values": pixels, **sizes}
