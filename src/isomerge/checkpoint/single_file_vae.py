"""The autoencoder of Stable Diffusion and FLUX in a single file: what diffusers calls its tensors.

Its attention has kernels of one pixel in some files and matrices in others, of the same entries; diffusers has
matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from isomerge.checkpoint.file_piece import Part, Piece, Shape
from isomerge.checkpoint.single_file_names import all_renamed, count_of
from isomerge.records import Json

STARTS = ("first_stage_model.", "vae.", "")
"""How names begin: in whole models, and in a file of an autoencoder alone."""
OUTSIDE = {
    **{f"{side}.{name}": f"{side}.{name}" for side in ("encoder", "decoder") for name in ("conv_in.", "conv_out.")},
    **{f"{side}.norm_out.": f"{side}.conv_norm_out." for side in ("encoder", "decoder")},
    "quant_conv.": "quant_conv.",
    "post_quant_conv.": "post_quant_conv.",
}
RESNET = {
    "norm1.": "norm1.",
    "conv1.": "conv1.",
    "norm2.": "norm2.",
    "conv2.": "conv2.",
    "nin_shortcut.": "conv_shortcut.",
}
ATTENTION = {"norm.": "group_norm.", "q.": "to_q.", "k.": "to_k.", "v.": "to_v.", "proj_out.": "to_out.0."}


def autoencoder(shapes: Mapping[str, Shape]) -> Part | None:
    """The autoencoder in diffusers' layout; None where there is none that these names describe.

    Args:
        shapes: of all tensors of the file.
    """
    for start in STARTS:
        stored = {name.removeprefix(start): name for name in shapes if name.startswith(start)}
        heights = [count_of(stored, f"{side}.") for side in ("encoder.down", "decoder.up")]
        layers = count_of(stored, "encoder.down.0.block.")
        if not layers or heights[0] != heights[1]:
            continue
        if (names := all_renamed(stored, dict(_rules(heights[0], layers)))) is None:
            return None
        pieces = {new: _piece(new, old, shapes[old]) for new, old in names.items()}
        config = _config({new: piece.stored for new, piece in pieces.items()}, heights[0], layers)
        return None if config is None else Part("AutoencoderKL", config, pieces)
    return None


def _piece(new: str, stored: str, shape: Shape) -> Piece:
    """A tensor; of attention a matrix, whatever it is stored as."""
    kernel = ".attentions." in new and len(shape) > 2 and prod(shape[2:]) == 1
    return Piece(stored, shape, shape=shape[:2] if kernel else None)


def _rules(heights: int, layers: int) -> Iterator[tuple[str, str]]:
    """Beginnings of names in the file, and in diffusers' layout."""
    yield from OUTSIDE.items()
    for height in range(heights):
        up = heights - 1 - height
        for layer in range(layers):
            yield from _under(
                f"encoder.down.{height}.block.{layer}.", f"encoder.down_blocks.{height}.resnets.{layer}."
            )
        for layer in range(layers + 1):
            yield from _under(f"decoder.up.{up}.block.{layer}.", f"decoder.up_blocks.{height}.resnets.{layer}.")
        yield f"encoder.down.{height}.downsample.conv.", f"encoder.down_blocks.{height}.downsamplers.0.conv."
        yield f"decoder.up.{up}.upsample.conv.", f"decoder.up_blocks.{height}.upsamplers.0.conv."
    for side in ("encoder", "decoder"):
        for number in (1, 2):
            yield from _under(f"{side}.mid.block_{number}.", f"{side}.mid_block.resnets.{number - 1}.")
        for old, new in ATTENTION.items():
            yield f"{side}.mid.attn_1.{old}", f"{side}.mid_block.attentions.0.{new}"


def _under(old: str, new: str) -> Iterator[tuple[str, str]]:
    for mine, theirs in RESNET.items():
        yield old + mine, new + theirs


def _config(shapes: Mapping[str, Shape], heights: int, layers: int) -> Json | None:
    """What the shapes tell; None where a tensor is missing."""
    wanted = [f"encoder.down_blocks.{k}.resnets.0.conv1.weight" for k in range(heights)]
    ends = [f"{side}.{name}.weight" for side in ("encoder", "decoder") for name in ("conv_in", "conv_out")]
    if not all(name in shapes for name in (*wanted, *ends)):
        return None
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": shapes[ends[0]][1],
        "out_channels": shapes[ends[3]][0],
        "latent_channels": shapes[ends[2]][1],
        "block_out_channels": [shapes[name][0] for name in wanted],
        "layers_per_block": layers,
        "down_block_types": ["DownEncoderBlock2D"] * heights,
        "up_block_types": ["UpDecoderBlock2D"] * heights,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
    }
