"""What Stable Diffusion's single files call the tensors that diffusers and transformers call otherwise: tables of
name beginnings; and its UNet in diffusers' layout.

The first layout is CompVis' (``model.diffusion_model.input_blocks.1.0.in_layers.2.weight``), in which blocks are
numbered one after the other; in diffusers' a number says at which height and another which layer there
(``down_blocks.0.resnets.0.conv1.weight``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from isomerge.checkpoint.file_piece import Part, Shape, wholes
from isomerge.records import Json

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
EIGHT_HEADS = 768
"""The width of the text that Stable Diffusion 1 reads."""
HEAD = 64
"""Coordinates of a head elsewhere."""


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


def all_renamed(stored: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, str] | None:
    """From new names to those in the file, which ``stored`` has by the old ones; None where some have no new name,
    or the same."""
    names = {renamed(name, rules): old for name, old in stored.items()}
    return None if len(names) < len(stored) or None in names else {str(new): old for new, old in names.items()}


def count_of(names: Iterable[str], start: str) -> int:
    """How many numbers follow these words in names."""
    heads = {name[len(start) :].partition(".")[0] for name in names if name.startswith(start)}
    return len({number for number in heads if number.isdecimal()})


def unet(shapes: Mapping[str, Shape]) -> Part | None:
    """The UNet in diffusers' layout; None where it is none that these names describe."""
    stored = {name.removeprefix(UNET): shape for name, shape in shapes.items() if name.startswith(UNET)}
    layers = next((k - 1 for k in range(2, 9) if f"input_blocks.{k}.0.op.weight" in stored), 0)
    if not layers:
        return None
    heights = 1
    while f"input_blocks.{heights * (layers + 1)}.0.op.weight" in stored:
        heights += 1
    rules = dict(unet_rules(heights, layers))
    if (names := all_renamed({name: UNET + name for name in stored}, rules)) is None:
        return None
    config = _unet_config({new: shapes[old] for new, old in names.items()}, heights, layers)
    return Part("UNet2DConditionModel", config, wholes(names, shapes))


def _unet_config(shapes: Mapping[str, Shape], heights: int, layers: int) -> Json:
    """What the shapes of a UNet tell of its config."""
    widths = [shapes[f"down_blocks.{k}.resnets.0.conv1.weight"][0] for k in range(heights)]
    text = shapes["mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"][1]
    linear = len(shapes["mid_block.attentions.0.proj_in.weight"]) == 2
    crossed = [f"down_blocks.{k}.attentions.0.proj_in.weight" in shapes for k in range(heights)]
    depths = [max(1, count_of(shapes, f"down_blocks.{k}.attentions.0.transformer_blocks.")) for k in range(heights)]
    depths[-1] = count_of(shapes, "mid_block.attentions.0.transformer_blocks.")
    said = shapes["add_embedding.linear_1.weight"][1] if "add_embedding.linear_1.weight" in shapes else None
    ends = shapes["conv_in.weight"][1], shapes["conv_out.weight"][0]
    return {
        "_class_name": "UNet2DConditionModel",
        "in_channels": ends[0],
        "out_channels": ends[1],
        "block_out_channels": widths,
        "layers_per_block": layers,
        "down_block_types": ["CrossAttnDownBlock2D" if crosses else "DownBlock2D" for crosses in crossed],
        "up_block_types": ["CrossAttnUpBlock2D" if crosses else "UpBlock2D" for crosses in crossed[::-1]],
        "transformer_layers_per_block": depths,
        "cross_attention_dim": text,
        "attention_head_dim": 8 if text == EIGHT_HEADS else [max(1, width // HEAD) for width in widths],
        "use_linear_projection": linear,
        "addition_embed_type": None if said is None else "text_time",
        "projection_class_embeddings_input_dim": said,
    }
