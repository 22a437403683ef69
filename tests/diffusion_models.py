"""Reference forms of diffusers' transformers in plain torch: the oracles of their laws where diffusers is not
installed.

They compute in float64 what the classes of their names compute (`test_diffusion.py` compares the two where it can).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import log
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
TEXT, POOLED, FREQUENCIES = 20, 12, 256


class Reference:
    """Named parameters and a config, saved as diffusers saves them."""

    def __init__(self, config: dict[str, Any], shapes: Shapes) -> None:
        self.config = config
        self.weights = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}

    def to(self, dtype: torch.dtype) -> Reference:
        self.weights = {name: torch.nn.Parameter(p.to(dtype)) for name, p in self.weights.items()}
        return self

    def eval(self) -> Reference:
        return self

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self.weights.items())

    def named_buffers(self) -> list[tuple[str, Tensor]]:
        return []

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        stored = {name: p.data for name, p in self.weights.items()}
        save_file(stored, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


def _linear(found: Shapes, name: str, rows: int, columns: int) -> None:
    found |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _two_layers(found: Shapes, name: str, width: int, inner: int, start: int, names: tuple[str, str]) -> None:
    _linear(found, f"{name}{names[0]}", inner, start)
    _linear(found, f"{name}{names[1]}", width, inner)


NEURONS = (".net.0.proj", ".net.2")
EMBEDDER = (".linear_1", ".linear_2")


def _joint(
    found: Shapes, name: str, width: int, head: int, *, normed: bool, both: bool = True, reads: bool = False
) -> None:
    """An attention of patches (and of the text with it); ``reads``: nothing is written to the text."""
    for part in ("to_q", "to_k", "to_v", "to_out.0", *(("add_q_proj", "add_k_proj", "add_v_proj") if both else ())):
        _linear(found, f"{name}.{part}", width, width)
    if both and not reads:
        _linear(found, f"{name}.to_add_out", width, width)
    for norm in ("norm_q", "norm_k", *(("norm_added_q", "norm_added_k") if both else ())):
        found |= {f"{name}.{norm}.weight": (head,)} if normed else {}


def dit() -> Reference:
    """Two blocks of DiT."""
    config = {"_class_name": "DiTTransformer2DModel", "num_attention_heads": 4, "attention_head_dim": 8, "in_channels": 3,
              "num_layers": 2, "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 10, "norm_type": "ada_norm_zero"}  # fmt: skip
    found: Shapes = {"pos_embed.proj.weight": (32, 3, 2, 2), "pos_embed.proj.bias": (32,)}
    for block in (f"transformer_blocks.{n}" for n in range(2)):
        _two_layers(found, f"{block}.norm1.emb.timestep_embedder", 32, 32, FREQUENCIES, EMBEDDER)
        found[f"{block}.norm1.emb.class_embedder.embedding_table.weight"] = (11, 32)
        _linear(found, f"{block}.norm1.linear", 6 * 32, 32)
        _joint(found, f"{block}.attn1", 32, 8, normed=False, both=False)
        _two_layers(found, f"{block}.ff", 32, 128, 32, NEURONS)
    _linear(found, "proj_out_1", 64, 32)
    _linear(found, "proj_out_2", 12, 32)
    return Reference(config, found)


def sd3(*, later: bool = False) -> Reference:
    """Stable Diffusion 3 of two blocks; ``later``: 3.5 of three, the first with a second attention, under norms."""
    depth, dual = (3, [0]) if later else (2, [])
    config = {"_class_name": "SD3Transformer2DModel", "sample_size": 8, "patch_size": 2, "in_channels": 3, "num_layers": depth,
              "attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": TEXT, "caption_projection_dim": 32,
              "pooled_projection_dim": POOLED, "out_channels": 3, "pos_embed_max_size": 6, "dual_attention_layers": dual,
              "qk_norm": "rms_norm" if later else None}  # fmt: skip
    found: Shapes = {
        "pos_embed.pos_embed": (1, 36, 32),
        "pos_embed.proj.weight": (32, 3, 2, 2),
        "pos_embed.proj.bias": (32,),
    }
    _two_layers(found, "time_text_embed.timestep_embedder", 32, 32, FREQUENCIES, EMBEDDER)
    _two_layers(found, "time_text_embed.text_embedder", 32, 32, POOLED, EMBEDDER)
    _linear(found, "context_embedder", 32, TEXT)
    for n in range(depth):
        block, last = f"transformer_blocks.{n}", n == depth - 1
        _linear(found, f"{block}.norm1.linear", (9 if n in dual else 6) * 32, 32)
        _linear(found, f"{block}.norm1_context.linear", (2 if last else 6) * 32, 32)
        _joint(found, f"{block}.attn", 32, 8, normed=later, reads=last)
        if n in dual:
            _joint(found, f"{block}.attn2", 32, 8, normed=later, both=False)
        for part in ("ff",) if last else ("ff", "ff_context"):
            _two_layers(found, f"{block}.{part}", 32, 128, 32, NEURONS)
    _linear(found, "norm_out.linear", 64, 32)
    _linear(found, "proj_out", 12, 32)
    return Reference(config, found)


def flux(*, guided: bool = True) -> Reference:
    """Two double and two single blocks of FLUX.1."""
    config = {"_class_name": "FluxTransformer2DModel", "patch_size": 1, "in_channels": 4, "num_layers": 2, "num_single_layers": 2,
              "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT, "out_channels": None,
              "pooled_projection_dim": POOLED, "guidance_embeds": guided, "axes_dims_rope": [4, 4, 8]}  # fmt: skip
    found: Shapes = {}
    for part in ("timestep", "guidance") if guided else ("timestep",):
        _two_layers(found, f"time_text_embed.{part}_embedder", 32, 32, FREQUENCIES, EMBEDDER)
    _two_layers(found, "time_text_embed.text_embedder", 32, 32, POOLED, EMBEDDER)
    _linear(found, "context_embedder", 32, TEXT)
    _linear(found, "x_embedder", 32, 4)
    for block in (f"transformer_blocks.{n}" for n in range(2)):
        _linear(found, f"{block}.norm1.linear", 192, 32)
        _linear(found, f"{block}.norm1_context.linear", 192, 32)
        _joint(found, f"{block}.attn", 32, 16, normed=True)
        for part in ("ff", "ff_context"):
            _two_layers(found, f"{block}.{part}", 32, 128, 32, NEURONS)
    for block in (f"single_transformer_blocks.{n}" for n in range(2)):
        _linear(found, f"{block}.norm.linear", 96, 32)
        _joint(found, f"{block}.attn", 32, 16, normed=True, both=False)
        del found[f"{block}.attn.to_out.0.weight"], found[f"{block}.attn.to_out.0.bias"]
        _linear(found, f"{block}.proj_mlp", 128, 32)
        _linear(found, f"{block}.proj_out", 32, 160)
    _linear(found, "norm_out.linear", 64, 32)
    _linear(found, "proj_out", 4, 32)
    return Reference(config, found)


# ---------------------------------------------------------------------- what they compute


def inputs(config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Fixed inputs, as the class's ``forward`` calls them."""
    rng = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)

    if config["_class_name"].startswith("DiT"):
        return {
            "hidden_states": normal(2, 3, 8, 8),
            "timestep": torch.tensor([3, 40]),
            "class_labels": torch.tensor([1, 7]),
        }
    text = {"encoder_hidden_states": normal(2, 5, TEXT), "pooled_projections": normal(2, POOLED)}
    if config["_class_name"].startswith("SD3"):
        return {"hidden_states": normal(2, 3, 8, 8), **text, "timestep": torch.tensor([3, 40])}
    places = torch.tensor([[0.0, n // 3, n % 3] for n in range(9)])
    guidance = {"guidance": torch.tensor([3.5, 2.0], dtype=dtype)} if config["guidance_embeds"] else {}
    times = torch.tensor([0.25, 0.75], dtype=dtype)
    return {
        "hidden_states": normal(2, 9, 4),
        **text,
        "timestep": times,
        "img_ids": places,
        "txt_ids": torch.zeros(5, 3),
        **guidance,
    }


def run(config: Mapping[str, Any], weights: Weights) -> Tensor:
    """The output of a reference on its inputs, in the dtype of the weights."""
    forward: dict[str, Callable[..., Tensor]] = {"DiT": _dit, "SD3": _sd3, "Flu": _flux}
    given = inputs(config, next(iter(weights.values())).dtype)
    return forward[config["_class_name"][:3]](config, weights, given)


def _apply(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _embed(w: Weights, name: str, x: Tensor) -> Tensor:
    return _apply(w, f"{name}.linear_2", F.silu(_apply(w, f"{name}.linear_1", x)))


def _neurons(w: Weights, name: str, x: Tensor) -> Tensor:
    return _apply(w, f"{name}.net.2", F.gelu(_apply(w, f"{name}.net.0.proj", x), approximate="tanh"))


def _time(t: Tensor, dtype: torch.dtype, shift: int = 0) -> Tensor:
    half = FREQUENCIES // 2
    angles = t[:, None].float() * torch.exp(-log(10000) * torch.arange(half, dtype=torch.float32) / (half - shift))
    return torch.cat([angles.cos(), angles.sin()], -1).to(dtype)


def _modulation(w: Weights, name: str, emb: Tensor, parts: int) -> tuple[Tensor, ...]:
    return _apply(w, name, F.silu(emb))[:, None].chunk(parts, -1)


def _normed(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-6) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift


def _patches(w: Weights, x: Tensor) -> Tensor:
    return F.conv2d(x, w["pos_embed.proj.weight"], w["pos_embed.proj.bias"], stride=2).flatten(2).mT


def _image(x: Tensor, side: int) -> Tensor:
    return torch.einsum("nhwpqc->nchpwq", x.reshape(len(x), side, side, 2, 2, 3)).reshape(
        len(x), 3, 2 * side, 2 * side
    )


def _heads(w: Weights, name: str, part: str, norm: str, x: Tensor, heads: int) -> Tensor:
    """Queries, keys or values [batch, heads, places, coordinates], normed where the weights have a gain."""
    found = _apply(w, f"{name}.{part}", x).unflatten(-1, (heads, -1)).transpose(1, 2)
    gain = w.get(f"{name}.{norm}.weight")
    return found if gain is None else F.rms_norm(found, found.shape[-1:], gain, eps=1e-6)


def _attend(
    w: Weights, name: str, streams: list[tuple[str, Tensor]], heads: int, turn: Callable = lambda x: x
) -> list[Tensor]:
    """Joint attention of streams (``to`` of patches, ``add`` of the text), before the projections out."""
    q, k, v = [], [], []
    for kind, x in streams:
        names = ("to_q", "to_k", "to_v") if kind == "to" else ("add_q_proj", "add_k_proj", "add_v_proj")
        norms = ("norm_q", "norm_k") if kind == "to" else ("norm_added_q", "norm_added_k")
        for into, part, norm in zip((q, k, v), names, (*norms, ""), strict=True):
            into.append(_heads(w, name, part, norm, x, heads))
    out = F.scaled_dot_product_attention(turn(torch.cat(q, 2)), turn(torch.cat(k, 2)), torch.cat(v, 2))
    return list(out.transpose(1, 2).flatten(2).split([x.shape[1] for _, x in streams], 1))


def _dit(config: Mapping[str, Any], w: Weights, given: Mapping[str, Tensor]) -> Tensor:
    x = _patches(w, given["hidden_states"])
    axis = torch.arange(4, dtype=torch.float64)
    row, column = (g.flatten() for g in torch.meshgrid(axis, axis, indexing="ij"))
    rates = 1 / 10000 ** (torch.arange(8, dtype=torch.float64) / 8)
    waves = [f(place[:, None] * rates) for place in (column, row) for f in (torch.sin, torch.cos)]
    x = x + torch.cat(waves, -1).float().to(x.dtype)

    def condition(n: int) -> Tensor:
        name = f"transformer_blocks.{n}.norm1.emb"
        times = _embed(w, f"{name}.timestep_embedder", _time(given["timestep"], x.dtype, 1))
        return times + w[f"{name}.class_embedder.embedding_table.weight"][given["class_labels"]]

    for n in range(config["num_layers"]):
        block = f"transformer_blocks.{n}"
        shift, scale, gate, shift2, scale2, gate2 = _modulation(w, f"{block}.norm1.linear", condition(n), 6)
        (seen,) = _attend(w, f"{block}.attn1", [("to", _normed(x, scale, shift))], 4)
        x = x + gate * _apply(w, f"{block}.attn1.to_out.0", seen)
        x = x + gate2 * _neurons(w, f"{block}.ff", _normed(x, scale2, shift2, 1e-5))
    shift, scale = _modulation(w, "proj_out_1", condition(0), 2)
    return _image(_apply(w, "proj_out_2", _normed(x, scale, shift)), 4)


def _sd3(config: Mapping[str, Any], w: Weights, given: Mapping[str, Tensor]) -> Tensor:
    places = w["pos_embed.pos_embed"].reshape(6, 6, -1)[1:5, 1:5].reshape(1, 16, -1)
    x, text = (
        _patches(w, given["hidden_states"]) + places,
        _apply(w, "context_embedder", given["encoder_hidden_states"]),
    )
    emb = _embed(w, "time_text_embed.timestep_embedder", _time(given["timestep"], x.dtype))
    emb = emb + _embed(w, "time_text_embed.text_embedder", given["pooled_projections"])
    for n in range(config["num_layers"]):
        block, last = f"transformer_blocks.{n}", n == config["num_layers"] - 1
        dual = n in config["dual_attention_layers"]
        shift, scale, gate, shift2, scale2, gate2, *second = _modulation(
            w, f"{block}.norm1.linear", emb, 9 if dual else 6
        )
        theirs = _modulation(w, f"{block}.norm1_context.linear", emb, 2 if last else 6)
        read = _normed(text, *(theirs[:2] if last else theirs[1::-1]))
        seen, heard = _attend(w, f"{block}.attn", [("to", _normed(x, scale, shift)), ("add", read)], 4)
        alone = _normed(x, second[1], second[0]) if dual else x
        x = x + gate * _apply(w, f"{block}.attn.to_out.0", seen)
        if dual:
            (seen,) = _attend(w, f"{block}.attn2", [("to", alone)], 4)
            x = x + second[2] * _apply(w, f"{block}.attn2.to_out.0", seen)
        x = x + gate2 * _neurons(w, f"{block}.ff", _normed(x, scale2, shift2))
        if not last:
            text = text + theirs[2] * _apply(w, f"{block}.attn.to_add_out", heard)
            text = text + theirs[5] * _neurons(w, f"{block}.ff_context", _normed(text, theirs[4], theirs[3]))
    scale, shift = _modulation(w, "norm_out.linear", emb, 2)
    return _image(_apply(w, "proj_out", _normed(x, scale, shift)), 4)


def _rotation(config: Mapping[str, Any], ids: Tensor) -> Callable[[Tensor], Tensor]:
    parts = []
    for axis, size in enumerate(config["axes_dims_rope"]):
        parts.append(
            ids[:, axis : axis + 1].double() / 10000 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
        )
    angles = torch.cat(parts, -1)

    def turn(x: Tensor) -> Tensor:
        one, two = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.stack([one * cos - two * sin, two * cos + one * sin], -1).flatten(-2)

    return turn


def _flux(config: Mapping[str, Any], w: Weights, given: Mapping[str, Tensor]) -> Tensor:
    x, text = (
        _apply(w, "x_embedder", given["hidden_states"]),
        _apply(w, "context_embedder", given["encoder_hidden_states"]),
    )
    emb = _embed(w, "time_text_embed.timestep_embedder", _time(given["timestep"] * 1000, x.dtype))
    if config["guidance_embeds"]:
        emb = emb + _embed(w, "time_text_embed.guidance_embedder", _time(given["guidance"] * 1000, x.dtype))
    emb = emb + _embed(w, "time_text_embed.text_embedder", given["pooled_projections"])
    turn = _rotation(config, torch.cat([given["txt_ids"], given["img_ids"]]))
    for n in range(config["num_layers"]):
        block = f"transformer_blocks.{n}"
        ours, theirs = (_modulation(w, f"{block}.{norm}.linear", emb, 6) for norm in ("norm1", "norm1_context"))
        both = [("add", _normed(text, theirs[1], theirs[0])), ("to", _normed(x, ours[1], ours[0]))]
        heard, seen = _attend(w, f"{block}.attn", both, 2, turn)
        x, text = (
            x + ours[2] * _apply(w, f"{block}.attn.to_out.0", seen),
            text + theirs[2] * _apply(w, f"{block}.attn.to_add_out", heard),
        )
        x = x + ours[5] * _neurons(w, f"{block}.ff", _normed(x, ours[4], ours[3]))
        text = text + theirs[5] * _neurons(w, f"{block}.ff_context", _normed(text, theirs[4], theirs[3]))
    x = torch.cat([text, x], 1)
    for n in range(config["num_single_layers"]):
        block = f"single_transformer_blocks.{n}"
        shift, scale, gate = _modulation(w, f"{block}.norm.linear", emb, 3)
        read = _normed(x, scale, shift)
        (seen,) = _attend(w, f"{block}.attn", [("to", read)], 2, turn)
        fed = F.gelu(_apply(w, f"{block}.proj_mlp", read), approximate="tanh")
        x = x + gate * _apply(w, f"{block}.proj_out", torch.cat([seen, fed], -1))
    scale, shift = _modulation(w, "norm_out.linear", emb, 2)
    return _apply(w, "proj_out", _normed(x[:, text.shape[1] :], scale, shift))


# name -> (constructor, largest relative change of outputs that rounding explains): all in float64
DIFFUSION: dict[str, tuple[Callable[[], Any], float]] = {
    "dit": (dit, 1e-9),
    "sd3": (sd3, 1e-9),
    "sd3-later": (lambda: sd3(later=True), 1e-9),
    "flux": (flux, 1e-9),
}
