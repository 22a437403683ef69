"""Text encoders in single files: CLIP's towers in transformers' own layout, and in OpenCLIP's, where queries, keys
and values are rows of one tensor and the projection is transposed; T5's encoder in transformers' layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from isomerge.checkpoint.file_piece import TRANSPOSED, Part, Piece, Shape, rows, wholes
from isomerge.checkpoint.single_file_names import count_of, renamed
from isomerge.records import Json

HEAD = 64
"""Coordinates of a head."""
PLAIN = {
    "text_encoder": (
        "cond_stage_model.transformer.",
        "conditioner.embedders.0.transformer.",
        "text_encoders.clip_l.transformer.",
    ),
    "text_encoder_2": ("text_encoders.clip_g.transformer.",),
}
"""By the part, how names begin in transformers' layout: in Stable Diffusion 1, in XL, in 3 and FLUX."""
T5 = "text_encoders.t5xxl.transformer."
"""The same of T5, which stands behind CLIP's towers."""
OPEN = {"text_encoder": ("cond_stage_model.model.",), "text_encoder_2": ("conditioner.embedders.1.model.",)}
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
            if (config := _config(pieces, "quick_gelu" if part == "text_encoder" else "gelu")) is not None:
                yield part, _tower(config, pieces)
    for part, starts in OPEN.items():
        for start in starts:
            pieces = _open_pieces(start, shapes)
            if pieces is not None and (config := _config(pieces, "gelu")) is not None:
                yield part, _tower(config, pieces)
    names = {name.removeprefix(T5): name for name in shapes if name.startswith(T5)}
    if names and (config := _t5_config({new: shapes[old] for new, old in names.items()})) is not None:
        behind = 2 + any(name.startswith(PLAIN["text_encoder_2"]) for name in shapes)
        yield f"text_encoder_{behind}", Part("T5EncoderModel", config, wholes(names, shapes))


def _tower(config: Json, pieces: dict[str, Piece]) -> Part:
    """A tower, with a projection where it has one."""
    if (projection := pieces.get("text_projection.weight")) is not None:
        outputs = (projection.shape or projection.stored)[0]
        config |= {"projection_dim": outputs, "architectures": ["CLIPTextModelWithProjection"]}
    return Part(config["architectures"][0], config, pieces)


def _t5_config(shapes: Mapping[str, Shape]) -> Json | None:
    """What shapes tell of T5's encoder; None where it is none."""
    first = "encoder.block.0.layer."
    table, query = shapes.get("shared.weight"), shapes.get(f"{first}0.SelfAttention.q.weight")
    gate = shapes.get(f"{first}1.DenseReluDense.wi_0.weight")
    distances = shapes.get(f"{first}0.SelfAttention.relative_attention_bias.weight")
    if not table or not query or not gate or not distances:
        return None
    return {
        "model_type": "t5",
        "architectures": ["T5EncoderModel"],
        "vocab_size": table[0],
        "d_model": table[1],
        "d_kv": query[0] // distances[1],
        "d_ff": gate[0],
        "num_layers": count_of(shapes, "encoder.block."),
        "num_heads": distances[1],
        "relative_attention_num_buckets": distances[0],
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": False,
    }


def _config(pieces: Mapping[str, Piece], act: str) -> Json | None:
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
