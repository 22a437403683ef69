"""FLUX.1's transformer in a single file, in the layout of Black Forest Labs: what diffusers calls its tensors.

Queries, keys and values are rows of one tensor there, in single blocks with the first layer of the MLP behind them,
and the last norm has its shift before its scale, where diffusers has it the other way round."""

from __future__ import annotations

import re
from collections.abc import Mapping

from isomerge.checkpoint.file_piece import SWAPPED, Part, Piece, Shape, rows
from isomerge.checkpoint.single_file_names import UNET, count_of, renamed

FLUX = "double_blocks.0.img_attn.qkv.weight"
"""A tensor that tells the layout."""
OUTSIDE = {
    "time_in.in_layer.": "time_text_embed.timestep_embedder.linear_1.",
    "time_in.out_layer.": "time_text_embed.timestep_embedder.linear_2.",
    "vector_in.in_layer.": "time_text_embed.text_embedder.linear_1.",
    "vector_in.out_layer.": "time_text_embed.text_embedder.linear_2.",
    "guidance_in.in_layer.": "time_text_embed.guidance_embedder.linear_1.",
    "guidance_in.out_layer.": "time_text_embed.guidance_embedder.linear_2.",
    "txt_in.": "context_embedder.",
    "img_in.": "x_embedder.",
    "final_layer.linear.": "proj_out.",
    "final_layer.adaLN_modulation.1.": "norm_out.linear.",
}
BLOCKS = {"double": "transformer_blocks", "single": "single_transformer_blocks"}
INSIDE = {
    "img_mod.lin.": "norm1.linear.",
    "txt_mod.lin.": "norm1_context.linear.",
    "img_attn.proj.": "attn.to_out.0.",
    "txt_attn.proj.": "attn.to_add_out.",
    "img_attn.norm.query_norm.scale": "attn.norm_q.weight",
    "img_attn.norm.key_norm.scale": "attn.norm_k.weight",
    "txt_attn.norm.query_norm.scale": "attn.norm_added_q.weight",
    "txt_attn.norm.key_norm.scale": "attn.norm_added_k.weight",
    "img_mlp.0.": "ff.net.0.proj.",
    "img_mlp.2.": "ff.net.2.",
    "txt_mlp.0.": "ff_context.net.0.proj.",
    "txt_mlp.2.": "ff_context.net.2.",
    "modulation.lin.": "norm.linear.",
    "norm.query_norm.scale": "attn.norm_q.weight",
    "norm.key_norm.scale": "attn.norm_k.weight",
    "linear2.": "proj_out.",
}
FUSED = {
    "img_attn.qkv.": ("attn.to_q.", "attn.to_k.", "attn.to_v."),
    "txt_attn.qkv.": ("attn.add_q_proj.", "attn.add_k_proj.", "attn.add_v_proj."),
    "linear1.": ("attn.to_q.", "attn.to_k.", "attn.to_v.", "proj_mlp."),
}
PLACE = re.compile(r"(double|single)_blocks\.(\d+)\.(.+)")
HEAD, AXES = 128, (16, 56, 56)
"""Coordinates of a head in all published models, and how many of them turn with each axis of a position."""


def is_flux(names: Mapping[str, object]) -> bool:
    """Whether a file has such a transformer, alone or among other parts."""
    return FLUX in names or UNET + FLUX in names


def flux_transformer(shapes: Mapping[str, Shape]) -> Part | None:
    """The transformer in diffusers' layout; None where it is none that these names describe, such as one with
    quantised weights or of another FLUX.

    Args:
        shapes: of all tensors of the file.
    """
    start = next((start for start in ("", UNET) if start + FLUX in shapes), None)
    if start is None:
        return None
    stored_names = {n.removeprefix(start): n for n in shapes if n.startswith(start) and (start or _is_own(n))}
    width = shapes[start + FLUX][0] // 3
    pieces: dict[str, Piece] = {}
    for name, stored in stored_names.items():
        parts = _pieces(name, stored, shapes[stored], width)
        if not parts or parts.keys() & pieces.keys():
            return None
        pieces |= parts
    config = _config({new: piece.stored for new, piece in pieces.items()}, width)
    return None if config is None else Part("FluxTransformer2DModel", config, pieces)


def _is_own(name: str) -> bool:
    """Whether a tensor of a file without a beginning for the transformer is the transformer's."""
    return bool(PLACE.match(name)) or any(name.startswith(start) for start in OUTSIDE)


def _pieces(name: str, stored: str, shape: Shape, width: int) -> dict[str, Piece]:
    """What the transformer has of a tensor; nothing where it is none of its own, as scales of quantised weights."""
    if not shape or not name.endswith((".weight", ".bias", ".scale")):
        return {}
    if (place := PLACE.fullmatch(name)) is None:
        new = renamed(name, OUTSIDE)
        swapped = SWAPPED if name.startswith("final_layer.adaLN_modulation.") else ""
        return {} if new is None else {new: Piece(stored, shape, turn=swapped)}
    block, inside = f"{BLOCKS[place[1]]}.{place[2]}.", place[3]
    fused = next((old for old in FUSED if inside.startswith(old)), None)
    if fused is None:
        new = renamed(inside, INSIDE)
        return {} if new is None else {block + new: Piece(stored, shape)}
    parts = [block + new + inside[len(fused) :] for new in FUSED[fused]]
    sizes = [width, width, width, shape[0] - 3 * width][: len(parts)]
    return rows(stored, shape, zip(parts, sizes, strict=True)) if sizes[-1] > 0 else {}


def _config(shapes: Mapping[str, Shape], width: int) -> dict[str, object] | None:
    """What the shapes tell; None where the tensors are not those of a FLUX.1."""
    depths = [count_of(shapes, f"{name}.") for name in BLOCKS.values()]
    lacking = [f"{name}.{k}.norm{'1' * (name == BLOCKS['double'])}.linear.weight"
               for name, depth in zip(BLOCKS.values(), depths, strict=True) for k in range(depth)]  # fmt: skip
    outside = ("x_embedder.weight", "context_embedder.weight", "proj_out.weight", "norm_out.linear.weight")
    pooled = "time_text_embed.text_embedder.linear_1.weight"
    norm = "transformer_blocks.0.attn.norm_q.weight"
    if not all(name in shapes for name in (*lacking, *outside, pooled, norm)):
        return None
    head = shapes[norm][0]
    return {
        "_class_name": "FluxTransformer2DModel",
        "patch_size": 1,
        "in_channels": shapes["x_embedder.weight"][1],
        "out_channels": shapes["proj_out.weight"][0],
        "num_layers": depths[0],
        "num_single_layers": depths[1],
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shapes["context_embedder.weight"][1],
        "pooled_projection_dim": shapes[pooled][1],
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
        **({"axes_dims_rope": list(AXES)} if head == HEAD else {}),
    }
