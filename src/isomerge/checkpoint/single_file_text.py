"""CLIP's text towers in single files: in transformers' own layout, and in OpenCLIP's, where queries, keys and
values are rows of one tensor and the projection is transposed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from isomerge.checkpoint.file_piece import TRANSPOSED, Part, Piece, Shape, rows, wholes
from isomerge.checkpoint.single_file_names import count_of, renamed

HEAD = 64
"""Coordinates of a head."""
PLAIN = {
    "text_encoder": ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer."),
}
"""By the part, how names begin in transformers' layout: in Stable Diffusion 1, in XL."""
OPEN = {
    "text_encoder": ("cond_stage_model.model.",),
    "text_encoder_2": ("conditioner.embedders.1.model.",),
}
"""The same in OpenCLIP's layout: in Stable Diffusion 2, in XL."""
OUTSIDE = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.": "text_model.final_layer_norm.",
    "text_projection": "text_projection.weight",
}
INSIDE = {
    "ln_1.": "layer_norm1.",
    "ln_2.": "layer_norm2.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
    "attn.out_proj.": "self_attn.out_proj.",
}
PLACE = re.compile(r"transformer\.resblocks\.(\d+)\.(.+)")
FUSED = re.compile(r"attn\.in_proj_(weight|bias)")
LEFT = ("logit_scale", "attn_mask", "transformer.text_model.embeddings.position_ids")
"""What stands beside a tower, and is none of it."""


def text_encoders(shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Part]]:
    """The towers of a file and their names as parts, in transformers' layout.

    Args:
        shapes: of all tensors of the file.
    """
    for part, starts in PLAIN.items():
        for start in starts:
            names = {name.removeprefix(start): name for name in shapes if name.startswith(start)}
            pieces = wholes(names, shapes)
            if (config := _config(pieces, "quick_gelu")) is not None:
                yield part, Part("CLIPTextModel", config, pieces)
    for part, starts in OPEN.items():
        for start in starts:
            pieces = _open_pieces(start, shapes)
            if pieces is not None and (config := _config(pieces, "gelu")) is not None:
                if (projection := pieces.get("text_projection.weight")) is not None:
                    config |= {"projection_dim": projection.stored[1]}
                    config |= {"architectures": ["CLIPTextModelWithProjection"]}
                yield part, Part(config["architectures"][0], config, pieces)


def _config(pieces: Mapping[str, Piece], act: str) -> dict[str, Any] | None:
    """What shapes tell of a tower, and how its layers are called in its models; None where it is none."""
    shapes = {name: piece.shape or piece.stored for name, piece in pieces.items()}
    table = shapes.get("text_model.embeddings.token_embedding.weight")
    place = shapes.get("text_model.embeddings.position_embedding.weight")
    inner = shapes.get("text_model.encoder.layers.0.mlp.fc1.weight")
    if not table or not place or not inner:
        return None
    return {
        "model_type": "clip_text_model",
        "architectures": ["CLIPTextModel"],
        "vocab_size": table[0],
        "hidden_size": table[1],
        "max_position_embeddings": place[0],
        "intermediate_size": inner[0],
        "num_hidden_layers": count_of(shapes, "text_model.encoder.layers."),
        "num_attention_heads": max(1, table[1] // HEAD),
        "hidden_act": act,
        "layer_norm_eps": 1e-5,
    }


def _open_pieces(start: str, shapes: Mapping[str, Shape]) -> dict[str, Piece] | None:
    """A tower in OpenCLIP's layout; None where there is none, or some of it has another name."""
    tower = [name for name in shapes if name.startswith(start) and name.removeprefix(start) not in LEFT]
    whole: dict[str, Piece] = {}
    for stored in tower:
        pieces = _pieces(stored.removeprefix(start), stored, shapes[stored])
        if not pieces:
            return None
        whole |= pieces
    return whole or None


def _pieces(name: str, stored: str, shape: Shape) -> dict[str, Piece]:
    """What a tower has of a tensor; nothing where it is none of its own."""
    if not shape:
        return {}
    if (place := PLACE.fullmatch(name)) is None:
        new = renamed(name, OUTSIDE)
        if new is None:
            return {}
        turned = name == "text_projection"
        return {new: Piece(stored, shape, shape=shape[::-1] if turned else None, turn=TRANSPOSED * turned)}
    layer = f"text_model.encoder.layers.{place[1]}."
    if (fused := FUSED.fullmatch(place[2])) is not None:
        parts = [(f"{layer}self_attn.{letter}_proj.{fused[1]}", shape[0] // 3) for letter in "qkv"]
        return rows(stored, shape, parts)
    new = renamed(place[2], INSIDE)
    return {} if new is None else {layer + new: Piece(stored, shape)}
