"""What Stable Diffusion's single files call the tensors that diffusers and transformers call otherwise: tables of
name beginnings.

The first layout is CompVis' (``model.diffusion_model.input_blocks.1.0.in_layers.2.weight``), in which blocks are
numbered one after the other; in diffusers' a number says at which height and another which layer there
(``down_blocks.0.resnets.0.conv1.weight``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

UNET = "model.diffusion_model."
"""How the names of a UNet's tensors begin."""

OUTSIDE = (
    ("time_embed.0.", "time_embedding.linear_1."),
    ("time_embed.2.", "time_embedding.linear_2."),
    ("label_emb.0.0.", "add_embedding.linear_1."),
    ("label_emb.0.2.", "add_embedding.linear_2."),
    ("input_blocks.0.0.", "conv_in."),
    ("out.0.", "conv_norm_out."),
    ("out.2.", "conv_out."),
)
RESNET = (
    ("in_layers.0.", "norm1."),
    ("in_layers.2.", "conv1."),
    ("emb_layers.1.", "time_emb_proj."),
    ("out_layers.0.", "norm2."),
    ("out_layers.3.", "conv2."),
    ("skip_connection.", "conv_shortcut."),
)


def unet_rules(heights: int, layers: int) -> Iterator[tuple[str, str]]:
    """Beginnings of names of a UNet's tensors in a single file, and in diffusers' layout; of two that fit the
    longer one counts.

    Args:
        heights: how many blocks there are on the way down.
        layers: residual layers in each.
    """
    yield from OUTSIDE
    for height in range(heights):
        for layer in range(layers):
            block = f"input_blocks.{1 + height * (layers + 1) + layer}."
            yield from _layer(block, f"down_blocks.{height}.", layer)
        yield f"input_blocks.{(height + 1) * (layers + 1)}.0.op.", f"down_blocks.{height}.downsamplers.0.conv."
        for layer in range(layers + 1):
            block = f"output_blocks.{height * (layers + 1) + layer}."
            yield from _layer(block, f"up_blocks.{height}.", layer)
            for place in (1, 2):  # behind the attention, where there is one
                yield f"{block}{place}.conv.", f"up_blocks.{height}.upsamplers.0.conv."
    for place, layer in ((0, 0), (2, 1)):
        yield from _resnet(f"middle_block.{place}.", f"mid_block.resnets.{layer}.")
    yield "middle_block.1.", "mid_block.attentions.0."


def _layer(block: str, own: str, layer: int) -> Iterator[tuple[str, str]]:
    yield from _resnet(f"{block}0.", f"{own}resnets.{layer}.")
    yield f"{block}1.", f"{own}attentions.{layer}."


def _resnet(block: str, own: str) -> Iterator[tuple[str, str]]:
    for old, new in RESNET:
        yield block + old, own + new


def renamed(name: str, rules: Mapping[str, str]) -> str | None:
    """A name by the longest beginning that fits; None where none does."""
    fits = max((old for old in rules if name.startswith(old)), key=len, default=None)
    return None if fits is None else rules[fits] + name[len(fits) :]


def count_of(names: Iterable[str], start: str) -> int:
    """How many numbers follow these words in names."""
    heads = {name[len(start) :].partition(".")[0] for name in names if name.startswith(start)}
    return len({number for number in heads if number.isdecimal()})
