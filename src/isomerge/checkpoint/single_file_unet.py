"""The UNet of a Stable Diffusion in one file, in diffusers' layout."""

from __future__ import annotations

from collections.abc import Mapping

from isomerge.checkpoint.file_piece import Part, wholes
from isomerge.checkpoint.single_file_names import UNET, count_of, renamed, unet_rules
from isomerge.records import Json

EIGHT_HEADS = 768
"""The width of the text that Stable Diffusion 1 reads."""
HEAD = 64
"""Coordinates of a head elsewhere."""
Shapes = Mapping[str, tuple[int, ...]]


def unet(shapes: Shapes) -> Part | None:
    """The UNet in diffusers' layout; None where it is none that these names describe."""
    stored = {name.removeprefix(UNET): shape for name, shape in shapes.items() if name.startswith(UNET)}
    layers = next((k - 1 for k in range(2, 9) if f"input_blocks.{k}.0.op.weight" in stored), 0)
    if not layers:
        return None
    heights = 1
    while f"input_blocks.{heights * (layers + 1)}.0.op.weight" in stored:
        heights += 1
    rules = dict(unet_rules(heights, layers))
    names = {renamed(name, rules): UNET + name for name in stored}
    if None in names or len(names) != len(stored):
        return None
    renamed_shapes = {str(new): shapes[old] for new, old in names.items()}
    config = _unet_config(renamed_shapes, heights, layers)
    pieces = wholes({str(k): v for k, v in names.items()}, shapes)
    return Part("UNet2DConditionModel", config, pieces)


def _unet_config(shapes: Shapes, heights: int, layers: int) -> Json:
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
