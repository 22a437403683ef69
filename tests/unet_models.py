"""Tiny UNets of diffusers, and what they are run on: the oracles of their laws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

Arguments = dict[str, Any]
SHARED: Arguments = {
    "sample_size": 8,
    "cross_attention_dim": 20,
    "norm_num_groups": 4,
    "block_out_channels": (16, 32),
}
TWO_LEVELS: Arguments = {**SHARED, "layers_per_block": 1, "attention_head_dim": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}  # fmt: skip
UNETS: dict[str, Arguments] = {
    # Stable Diffusion 1: one number of heads, 1x1 convolutions before and behind a transformer
    "unet": TWO_LEVELS,
    # 2: another number of heads at each height, linear maps
    "unet-linear": {**TWO_LEVELS, "attention_head_dim": (2, 4), "use_linear_projection": True, "num_class_embeds": 5},
    # XL: no attention at the first height, several layers in a transformer, sizes of pictures beside the time step
    "unet-sized": {**SHARED, "layers_per_block": (1, 2), "attention_head_dim": (2, 4), "use_linear_projection": True,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2), "addition_embed_type": "text_time", "addition_time_embed_dim": 4,
        "projection_class_embeddings_input_dim": 36},
    # a latent consistency model of four heights, whose middle has no attention, over unCLIP's vectors
    "unet-four": {**SHARED, "layers_per_block": 1, "attention_head_dim": 2, "block_out_channels": (8, 8, 12, 16),
        "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",), "mid_block_type": "UNetMidBlock2D",
        "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3, "time_cond_proj_dim": 6,
        "class_embed_type": "projection", "projection_class_embeddings_input_dim": 10, "encoder_hid_dim": 7},
}  # fmt: skip


def unet(name: str) -> Any:
    """One of these, with weights that it is made with."""
    return UNet2DConditionModel(**UNETS[name])


def run(config: Mapping[str, Any], folder: Path, dtype: torch.dtype) -> Tensor:
    """The output of a saved UNet on fixed inputs, as diffusers computes it, in the dtype of its weights."""
    rng = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)

    model = UNet2DConditionModel.from_pretrained(folder, torch_dtype=dtype, low_cpu_mem_usage=False).eval()
    size = 2 ** len(config["block_out_channels"]) if len(config["block_out_channels"]) > 2 else 8
    width = config["encoder_hid_dim"] or config["cross_attention_dim"]
    more: Arguments = {}
    if config["addition_embed_type"]:
        more["added_cond_kwargs"] = {"text_embeds": normal(2, 12), "time_ids": torch.arange(12.0).reshape(2, 6)}
    if config["class_embed_type"]:
        more["class_labels"] = normal(2, config["projection_class_embeddings_input_dim"])
    elif config["num_class_embeds"]:
        more["class_labels"] = torch.tensor([1, 4])
    if config["time_cond_proj_dim"]:
        more["timestep_cond"] = normal(2, config["time_cond_proj_dim"])
    with torch.no_grad():
        return model(normal(2, 4, size, size), torch.tensor([3, 40]), normal(2, 5, width), **more).sample


UNET_TOYS: dict[str, tuple[Callable[[], Any], float]] = {
    name: ((lambda name=name: unet(name)), 1e-9) for name in UNETS
}
