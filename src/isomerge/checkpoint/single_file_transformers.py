"""Transformers in single files, in the layouts of those who trained them: what diffusers calls their tensors.

FLUX.1 is as Black Forest Labs stores it, Stable Diffusion 3 as Stability does. In both, queries, keys and values
are rows of one tensor, in FLUX's single blocks with the first layer of the MLP behind them, and norms that give a
scale and a shift alone have the shift first, where diffusers has it the other way round."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isqrt

from isomerge.checkpoint.file_piece import SWAPPED, Part, Piece, Shape, rows
from isomerge.checkpoint.single_file_names import UNET, count_of, renamed
from isomerge.records import Json


@dataclass(frozen=True)
class Layout:
    """A layout: beginnings of names in the file, each with that in diffusers' layout."""

    kind: str
    telling: str
    """A fused tensor that tells the layout; a third of its rows are the width."""
    blocks: Mapping[str, str]
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    """Behind a block's number."""
    fused: Mapping[str, tuple[str, ...]]
    """Tensors of which several are rows, one behind the other: as many each as the width, the last one the rest."""
    config: Callable[[Mapping[str, Shape], int, Json], Json]
    """What shapes and width tell beside what both layouts have."""
    needed: tuple[str, ...]
    """Tensors that every such transformer has, by diffusers' names."""

    def swapped(self, name: str, count: int, width: int) -> bool:
        """Whether the halves of a tensor with so many rows change places: scale and shift."""
        return ".adaLN_modulation." in f".{name}" and count == 2 * width

    def place(self, name: str) -> re.Match[str] | None:
        """The block, its number and the name inside of it."""
        return re.fullmatch(rf"({'|'.join(self.blocks)})\.(\d+)\.(.+)", name)

    def owns(self, name: str) -> bool:
        """Whether a tensor of a file in which the transformer's names have no beginning is the transformer's."""
        return bool(self.place(name)) or any(name.startswith(start) for start in self.outside)

    def pieces(self, name: str, stored: str, shape: Shape, width: int) -> dict[str, Piece]:
        """What the transformer has of a tensor; nothing where it is none of its own, as scales of quantised
        weights."""
        if not shape or not name.endswith((".weight", ".bias", ".scale", "pos_embed")):
            return {}
        place = self.place(name)
        block, inside = (f"{self.blocks[place[1]]}.{place[2]}.", place[3]) if place else ("", name)
        fused = next((old for old in self.fused if place and inside.startswith(old)), None)
        if fused is None:
            new = renamed(inside, self.inside if place else self.outside)
            turn = SWAPPED if self.swapped(name, shape[0], width) else ""
            return {} if new is None else {block + new: Piece(stored, shape, turn=turn)}
        parts = [block + new + inside[len(fused) :] for new in self.fused[fused]]
        sizes = [*[width] * (len(parts) - 1), shape[0] - (len(parts) - 1) * width]
        return rows(stored, shape, zip(parts, sizes, strict=True)) if sizes[-1] > 0 else {}

    def modules(self, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, list[str], bool]]:
        """The linear layers of a transformer in diffusers' layout as this one has them: the layer's name here,
        those in diffusers' layout in the order of its rows, and whether its halves change places.

        Args:
            shapes: of the transformer's tensors, by diffusers' names.
        """
        places = [("", "", [(old, (new,)) for old, new in self.outside.items()])]
        within = [*((old, (new,)) for old, new in self.inside.items()), *self.fused.items()]
        for mine, theirs in self.blocks.items():
            places += [(f"{mine}.{k}.", f"{theirs}.{k}.", within) for k in range(count_of(shapes, f"{theirs}."))]
        for start, block, names in places:
            layers = [
                (old, new) for old, new in names if all(len(shapes.get(f"{block}{x}weight", ())) > 1 for x in new)
            ]
            for old, new in layers:
                if not any(set(new) < set(more) for _, more in layers):  # rows of another tensor of this block
                    swapped = self.swapped(f"{start}{old}", *shapes[f"{block}{new[0]}weight"][:2])
                    yield f"{start}{old}".rstrip("."), [f"{block}{x}".rstrip(".") for x in new], swapped


def _flux(shapes: Mapping[str, Shape], width: int, config: Json) -> Json:
    head = shapes["transformer_blocks.0.attn.norm_q.weight"][0]
    return {
        "patch_size": 1,
        "in_channels": shapes["x_embedder.weight"][1],
        "out_channels": shapes["proj_out.weight"][0],
        "num_single_layers": count_of(shapes, "single_transformer_blocks."),
        **config,
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
        **({"axes_dims_rope": list(AXES)} if head == FLUX_HEAD else {}),
    }


def _sd3(shapes: Mapping[str, Shape], width: int, config: Json) -> Json:
    depth, patches = config["num_layers"], shapes["pos_embed.proj.weight"]
    norm = shapes.get("transformer_blocks.0.attn.norm_q.weight")
    head = norm[0] if norm else SD3_HEAD
    dual = [k for k in range(depth) if f"transformer_blocks.{k}.attn2.to_q.weight" in shapes]
    return {
        "patch_size": patches[2],
        "in_channels": patches[1],
        "out_channels": shapes["proj_out.weight"][0] // patches[2] ** 2,
        **config,
        "attention_head_dim": head,
        "num_attention_heads": max(1, width // head),
        "caption_projection_dim": shapes["context_embedder.weight"][0],
        "pos_embed_max_size": isqrt(shapes["pos_embed.pos_embed"][1]),
        "dual_attention_layers": dual,
        "qk_norm": "rms_norm" if norm else None,
    }


FLUX_HEAD, AXES = 128, (16, 56, 56)
"""Coordinates of a head in all published models, and how many of them turn with each axis of a position."""
SD3_HEAD = 64
"""The same of Stable Diffusion 3, where no norm tells it."""
FLUX = Layout(
    kind="FluxTransformer2DModel",
    telling="double_blocks.0.img_attn.qkv.weight",
    blocks={"double_blocks": "transformer_blocks", "single_blocks": "single_transformer_blocks"},
    outside={
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
    },
    inside={
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
    },
    fused={
        "img_attn.qkv.": ("attn.to_q.", "attn.to_k.", "attn.to_v."),
        "txt_attn.qkv.": ("attn.add_q_proj.", "attn.add_k_proj.", "attn.add_v_proj."),
        "linear1.": ("attn.to_q.", "attn.to_k.", "attn.to_v.", "proj_mlp."),
    },
    config=_flux,
    needed=("x_embedder.weight", "transformer_blocks.0.attn.norm_q.weight"),
)
SD3 = Layout(
    kind="SD3Transformer2DModel",
    telling="joint_blocks.0.x_block.attn.qkv.weight",
    blocks={"joint_blocks": "transformer_blocks"},
    outside={
        "t_embedder.mlp.0.": "time_text_embed.timestep_embedder.linear_1.",
        "t_embedder.mlp.2.": "time_text_embed.timestep_embedder.linear_2.",
        "y_embedder.mlp.0.": "time_text_embed.text_embedder.linear_1.",
        "y_embedder.mlp.2.": "time_text_embed.text_embedder.linear_2.",
        "context_embedder.": "context_embedder.",
        "x_embedder.proj.": "pos_embed.proj.",
        "pos_embed": "pos_embed.pos_embed",
        "final_layer.linear.": "proj_out.",
        "final_layer.adaLN_modulation.1.": "norm_out.linear.",
    },
    inside={
        "x_block.adaLN_modulation.1.": "norm1.linear.",
        "x_block.mlp.fc1.": "ff.net.0.proj.",
        "x_block.mlp.fc2.": "ff.net.2.",
        "x_block.attn.proj.": "attn.to_out.0.",
        "x_block.attn.ln_q.": "attn.norm_q.",
        "x_block.attn.ln_k.": "attn.norm_k.",
        "x_block.attn2.proj.": "attn2.to_out.0.",
        "x_block.attn2.ln_q.": "attn2.norm_q.",
        "x_block.attn2.ln_k.": "attn2.norm_k.",
        "context_block.adaLN_modulation.1.": "norm1_context.linear.",
        "context_block.mlp.fc1.": "ff_context.net.0.proj.",
        "context_block.mlp.fc2.": "ff_context.net.2.",
        "context_block.attn.proj.": "attn.to_add_out.",
        "context_block.attn.ln_q.": "attn.norm_added_q.",
        "context_block.attn.ln_k.": "attn.norm_added_k.",
    },
    fused={
        "x_block.attn.qkv.": ("attn.to_q.", "attn.to_k.", "attn.to_v."),
        "x_block.attn2.qkv.": ("attn2.to_q.", "attn2.to_k.", "attn2.to_v."),
        "context_block.attn.qkv.": ("attn.add_q_proj.", "attn.add_k_proj.", "attn.add_v_proj."),
    },
    config=_sd3,
    needed=("pos_embed.proj.weight", "pos_embed.pos_embed"),
)
LAYOUTS = (FLUX, SD3)


def layout_of(names: Mapping[str, object]) -> tuple[Layout, str] | None:
    """The layout of a file with such a transformer, alone or among other parts, and how its names begin."""
    return next(
        ((layout, start) for layout in LAYOUTS for start in ("", UNET) if start + layout.telling in names), None
    )


def transformer(shapes: Mapping[str, Shape]) -> Part | None:
    """The transformer in diffusers' layout; None where it is none that a layout describes, such as one with
    quantised weights or FLUX.2.

    Args:
        shapes: of all tensors of the file.
    """
    if (known := layout_of(shapes)) is None:
        return None
    layout, start = known
    names = {n.removeprefix(start): n for n in shapes if n.startswith(start) and (start or layout.owns(n))}
    width = shapes[start + layout.telling][0] // 3
    pieces: dict[str, Piece] = {}
    for name, stored in names.items():
        parts = layout.pieces(name, stored, shapes[stored], width)
        if not parts or parts.keys() & pieces.keys():
            return None
        pieces |= parts
    config = _config(layout, {new: piece.stored for new, piece in pieces.items()}, width)
    return None if config is None else Part(layout.kind, config, pieces)


def _config(layout: Layout, shapes: Mapping[str, Shape], width: int) -> Json | None:
    """What the shapes tell; None where tensors are lacking."""
    pooled = "time_text_embed.text_embedder.linear_1.weight"
    norms = [
        f"{name}.{k}.norm{'1' * (name == 'transformer_blocks')}.linear.weight"
        for name in layout.blocks.values()
        for k in range(count_of(shapes, f"{name}."))
    ]
    outside = ("context_embedder.weight", "proj_out.weight", "norm_out.linear.weight", pooled)
    if not all(name in shapes for name in (*norms, *outside, *layout.needed)):
        return None
    config: Json = {
        "num_layers": count_of(shapes, "transformer_blocks."),
        "joint_attention_dim": shapes["context_embedder.weight"][1],
        "pooled_projection_dim": shapes[pooled][1],
    }
    return {"_class_name": layout.kind, **layout.config(shapes, width, config)}
