"""Texts with images, through the processor of a checkpoint that reads both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.examples import ALONG
from isomerge.observe.data.images import PROCESSORS, image_encoder, picture_of

IMAGES = ("pixel_values", "pixel_attention_mask", "image_sizes", "spatial_shapes")
"""What a processor may give of images, of which one example has a first axis of length one."""


def pair_encoder(
    folder: Path, inputs: Inputs, encode: Callable[[str], Mapping[str, Any]], length: int
) -> Callable[[str, Any, str], dict[str, Any]]:
    """A function from a text, an image (a path or a Pillow image) and the name of both to one row of numbers.

    Where the text has tokens that stand for the image, by the checkpoint's own processor (an image that the text
    gives no place stands before it); else (models of pairs, such as CLIP) by tokenizer and image processor.

    Args:
        encode: a text to ids, by the tokenizer alone.
        length: of a text, at most; one that is longer with its image is refused.

    Raises:
        IsomergeError: no processor, or one that transformers cannot load; from the function: an image that cannot
            be read, or one that the processor refuses.
    """
    if inputs.image_token is None:
        image = image_encoder(folder, inputs)
        return lambda text, picture, where: {**encode(text), "pixel_values": image(picture, where)}
    processor = _load(folder)
    place = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)

    def read(text: str, picture: Any, where: str) -> dict[str, Any]:
        opened = picture_of(picture, where, "RGB")
        if isinstance(place, str) and place not in text:
            text = place + text
        row = _row(_processed(processor, text, opened, where), where)
        if len(row["input_ids"]) > length:
            raise IsomergeError(
                f"{where}: text and image are {len(row['input_ids'])} tokens, and no more than {length} are read: "
                "give more with --length, or a shorter text"
            )
        return row

    return read


def _load(folder: Path) -> Any:
    from transformers import AutoProcessor

    if not any((folder / name).is_file() for name in PROCESSORS):
        raise IsomergeError(
            f"{folder} has no processor ({PROCESSORS[0]}), so images cannot be read with their texts: copy the "
            "processor's files there, or give texts alone"
        )
    try:
        return AutoProcessor.from_pretrained(folder, trust_remote_code=False, backend="pil")
    except Exception as error:  # as many types as there are processors
        raise IsomergeError(
            f"{folder}: transformers cannot load this processor ({_first(error)}); save it again with "
            f"save_pretrained"
        ) from error


def _processed(processor: Any, text: str, picture: Any, where: str) -> Mapping[str, Any]:
    try:
        return processor(text=[text], images=[picture], return_tensors="pt")
    except Exception as error:  # whatever a processor finds wrong with an image or a text
        raise IsomergeError(
            f"{where}: the checkpoint's processor refuses this text and image ({_first(error)})"
        ) from error


def _row(features: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """One example of what a processor gave for one."""

    row = {name: features[name] for name in (*ALONG, *IMAGES) if name in features}
    strange = sorted(set(features) - set(row)) or [name for name, x in row.items() if len(x) != 1]
    if strange or "pixel_values" not in row:
        raise IsomergeError(
            f"{where}: the checkpoint's processor takes images to pieces ({', '.join(strange)}), and only images "
            "in one piece are read: give texts alone"
        )
    kinds = {name: torch.float32 if name == "pixel_values" else torch.int64 for name in row}
    return {name: x[0].to(kinds[name]) for name, x in row.items() if name != "attention_mask"}


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
