"""Images to pixel tensors, by a checkpoint's own image processor or by plain scaling; texts with images, by the
processor of a checkpoint that reads both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from isomerge.errors import IsomergeError, first_line
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.examples import ALONG, IMAGES
from isomerge.observe.data.text import loaded
from isomerge.records import Json

SUFFIXES = (".png", ".jpg", ".jpeg")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels, as Pillow calls them; colours become grey, and grey becomes colour, as the checkpoint wants it."""
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def image_encoder(folder: Path, inputs: Inputs) -> Callable[[Any, str], Tensor]:
    """A function from one image (a path or a Pillow image) and its name to ``pixel_values`` float32 [c, h, w].

    By the image processor of the checkpoint in ``folder``; where it has none, images are resized (bilinear) to the
    ``image_size`` of config.json, scaled to 0..1, and normalised with mean 0.5 and standard deviation 0.5.

    Raises:
        IsomergeError: a processor that transformers cannot load; from the function: an image that cannot be read,
            of more than 8 bits a channel, or one that the processor does not bring to the checkpoint's size.
    """
    processor = _load(folder)
    channels = inputs.image_shape[0]
    if channels not in MODES:
        raise IsomergeError(
            f"{folder}: this checkpoint reads {channels} channels, which no picture has: give pixel_values as "
            f"safetensors"
        )

    def encode(image: Any, where: str) -> Tensor:
        picture = picture_of(image, where, MODES[channels])
        pixels = _scaled(picture, inputs) if processor is None else _processed(processor, picture, where)
        if tuple(pixels.shape) != inputs.image_shape:
            raise IsomergeError(
                f"{where}: the image becomes {list(pixels.shape)} pixels, but the checkpoint reads "
                f"{list(inputs.image_shape)}: resize the images, or set do_resize in preprocessor_config.json"
            )
        return pixels

    return encode


def white_of(folder: Path) -> int:
    """The pixel value of white, which the checkpoint's image processor scales to 1: 255 unless it says
    otherwise."""
    processor = _load(folder)
    factor = getattr(processor, "rescale_factor", None)
    return min(255, round(1 / factor)) if factor and getattr(processor, "do_rescale", True) else 255


def _load(folder: Path) -> Any:
    """The checkpoint's image processor; None where it has none."""
    if not any((folder / name).is_file() for name in PROCESSORS):
        return None
    # Pillow's arithmetic is the same on every machine
    return loaded("AutoImageProcessor", folder, "image processor", backend="pil")


def picture_of(image: Any, where: str, mode: str) -> Any:
    """A Pillow image in the mode that the checkpoint reads: of a path, of bytes, or of such an image."""
    from PIL import Image, ImageOps

    try:
        picture = Image.open(image) if isinstance(image, (str, Path, BytesIO)) else image
        if isinstance(image, BytesIO):  # as the package datasets reads them
            picture = ImageOps.exif_transpose(picture)
        if picture.mode.startswith(("I", "F")):
            raise IsomergeError(f"{where}: the image has more than 8 bits a channel: save it with 8")
        return picture.convert(mode)
    except (OSError, ValueError, SyntaxError, AttributeError, Image.DecompressionBombError) as error:
        raise IsomergeError(
            f"{where}: this image cannot be read ({type(error).__name__}); save it as PNG again"
        ) from None


def _processed(processor: Any, picture: Any, where: str) -> Tensor:
    pixels = numpy.asarray(picture)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    try:
        features = processor(images=[pixels], return_tensors="pt", input_data_format="channels_first")
        return features["pixel_values"][0].to(torch.float32)
    except (ValueError, TypeError, KeyError, RuntimeError, IndexError) as error:
        raise IsomergeError(
            f"{where}: the checkpoint's image processor refuses this image ({first_line(error)})"
        ) from error


def _scaled(picture: Any, inputs: Inputs) -> Tensor:
    channels, height, width = inputs.image_shape
    if picture.size != (width, height):
        picture = picture.resize((width, height), 2)  # bilinear
    pixels = torch.from_numpy(numpy.array(picture, dtype=numpy.float32)).reshape(height, width, channels)
    return ((pixels / 255 - 0.5) / 0.5).permute(2, 0, 1).contiguous()


def find_images(path: Path) -> list[Path]:
    """The images under a folder, in the order of their names (hidden files are left out); the file itself of a
    file."""
    if path.is_file():
        return [path] if path.suffix.lower() in SUFFIXES else []
    images = (p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    return sorted(p for p in images if not any(part.startswith(".") for part in p.relative_to(path).parts))


def labelled_images(path: Path, images: Iterable[Path], inputs: Inputs) -> Iterator[tuple[Path, int | None]]:
    """Images with the class of their sub-folder, one of each class in turn; without sub-folders, without class.

    Names of sub-folders are names in ``label2id`` or ids; else, when there are as many as the checkpoint has
    classes, they are the classes in sorted order.

    Raises:
        IsomergeError: a sub-folder that is no class, or images beside sub-folders of images.
    """
    groups: dict[str, list[Path]] = {}
    for image in images:
        parts = image.relative_to(path).parts if path.is_dir() else (image.name,)
        groups.setdefault(parts[0] if len(parts) > 1 else "", []).append(image)
    if set(groups) == {""}:
        yield from ((image, None) for image in groups[""])
        return
    if "" in groups:
        raise IsomergeError(
            f"{groups[''][0]} lies beside sub-folders of images: move it into the sub-folder of its class"
        )
    names, known = sorted(groups), inputs.class_ids
    named = all(name in known or name.isdecimal() for name in names)
    if not named and len(names) == len(known):
        ids = dict(zip(names, range(len(names)), strict=True))
    else:
        ids = {name: inputs.class_id(name, str(path / name)) for name in names}
    queues = [(ids[name], groups[name]) for name in sorted(names, key=lambda name: ids[name])]
    for turn in range(max(len(queue) for _, queue in queues)):
        yield from ((queue[turn], number) for number, queue in queues if turn < len(queue))


def pair_encoder(
    folder: Path, inputs: Inputs, encode: Callable[[str], Mapping[str, Any]], length: int
) -> Callable[[str, Any, str], Json]:
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
    processor = _pair_processor(folder)
    place = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)

    def read(text: str, picture: Any, where: str) -> Json:
        opened = picture_of(picture, where, "RGB")
        if isinstance(place, str) and place not in text:
            text = place + text
        row = _row(_read_pair(processor, text, opened, where), where)
        if len(row["input_ids"]) > length:
            raise IsomergeError(
                f"{where}: text and image are {len(row['input_ids'])} tokens, and no more than {length} are read: "
                "give more with --length, or a shorter text"
            )
        return row

    return read


def _pair_processor(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in PROCESSORS):
        raise IsomergeError(
            f"{folder} has no processor ({PROCESSORS[0]}), so images cannot be read with their texts: copy the "
            "processor's files there, or give texts alone"
        )
    return loaded("AutoProcessor", folder, "processor", backend="pil")


def _read_pair(processor: Any, text: str, picture: Any, where: str) -> Mapping[str, Any]:
    try:
        return processor(text=[text], images=[picture], return_tensors="pt")
    except Exception as error:  # whatever a processor finds wrong with an image or a text
        raise IsomergeError(
            f"{where}: the checkpoint's processor refuses this text and image ({first_line(error)})"
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
