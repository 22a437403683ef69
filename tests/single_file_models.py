"""Tiny Stable Diffusions in one file, by the names of the original layout; what diffusers reads in them is the
oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as tf
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors.torch import save_file

from isomerge.checkpoint.single_file_names import UNET, renamed, unet_rules
from toys import randomise

SHARED: dict[str, Any] = {"sample_size": 8, "layers_per_block": 2, "in_channels": 4, "out_channels": 4}
UNETS: dict[str, dict[str, Any]] = {
    "sd1": {**SHARED, "block_out_channels": (32, 64), "attention_head_dim": 8, "cross_attention_dim": 768,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
    "xl": {**SHARED, "block_out_channels": (64, 128), "attention_head_dim": (1, 2), "cross_attention_dim": 40,
        "use_linear_projection": True, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "transformer_layers_per_block": (1, 2),
        "addition_embed_type": "text_time", "addition_time_embed_dim": 4, "projection_class_embeddings_input_dim": 36},
}  # fmt: skip
TEXT = {"sd1": "cond_stage_model.transformer.", "xl": "conditioner.embedders.0.transformer."}


def original_names(kind: str, unet: Any) -> dict[str, str]:
    """From diffusers' names of a UNet's tensors to the original ones."""
    rules = {new: old for old, new in unet_rules(2, 2) if ".conv." not in new or "up_blocks" not in new}
    names = {}
    for name in unet.state_dict():
        if ".upsamplers." in name:  # behind the attention, where there is one
            height = int(name.split(".")[1])
            place = 2 if UNETS[kind]["up_block_types"][height].startswith("Cross") else 1
            names[name] = f"{UNET}output_blocks.{3 * height + 2}.{place}.conv.{name.rpartition('.')[2]}"
        else:
            names[name] = f"{UNET}{renamed(name, rules)}"
    return names


def unet_of(kind: str, seed: int) -> UNet2DConditionModel:
    """A random one."""
    model: Any = UNet2DConditionModel(**UNETS[kind])
    randomise(model, seed)
    return model


def single_file(kind: str, path: Path, seed: int, change: float = 0.0) -> Path:
    """A whole model: a UNet, a text tower, a VAE of two tensors, numbers of steps. With ``change``, a fine-tune of that
    of the seed, whose UNet differs by this much."""
    unet = unet_of(kind, seed)
    names = original_names(kind, unet)
    tensors = {names[name]: tensor for name, tensor in unet.state_dict().items()}
    config = tf.CLIPTextConfig(
        vocab_size=30, hidden_size=64, intermediate_size=24, num_attention_heads=1, num_hidden_layers=2,
        max_position_embeddings=8,
    )  # fmt: skip
    text: Any = tf.CLIPTextModel(config)
    randomise(text, seed + 1)
    stored = {name.removeprefix("text_model."): t for name, t in text.state_dict().items()}
    tensors |= {f"{TEXT[kind]}text_model.{name}": t for name, t in stored.items()}
    rng = torch.Generator().manual_seed(seed)
    tensors |= {f"first_stage_model.decoder.{name}.weight": torch.randn(4, 4, generator=rng) for name in "ab"}
    tensors["alphas_cumprod"] = torch.linspace(1, 0, 10)
    for name in names.values() if change else ():
        tensors[name] = tensors[name] + change * torch.randn(tensors[name].shape, generator=rng)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)
    return path
