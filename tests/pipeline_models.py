"""Tiny random pipelines of diffusers, and pictures that they make: what merges of pipelines are tried on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion import StableDiffusionPipeline
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
from diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl import StableDiffusionXLPipeline
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

from toys import randomise
from unet_models import UNETS

WORDS = ["<|startoftext|>", "<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz", *(f"{c}</w>" for c in "abcdefghijklmnopqrstuvwxyz")]  # fmt: skip
WIDTH = 20
"""Of text encoders."""


def made(model: Any, seed: int) -> Any:
    """A model with random weights, which no other seed has."""
    model = model.eval()
    randomise(model, seed)
    return model


def clip_tokenizer() -> Any:
    """Letters."""
    return tf.CLIPTokenizer(vocab={word: n for n, word in enumerate(WORDS)}, merges=[], model_max_length=8)


def clip_text(seed: int, *, projected: bool = False) -> Any:
    """A text tower of CLIP."""
    config = tf.CLIPTextConfig(
        vocab_size=len(WORDS), hidden_size=WIDTH, intermediate_size=24, num_attention_heads=2, num_hidden_layers=2,
        max_position_embeddings=8, projection_dim=12, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    return made((tf.CLIPTextModelWithProjection if projected else tf.CLIPTextModel)(config), seed)


def t5_text(seed: int, width: int = WIDTH) -> Any:
    """An encoder of T5."""
    config = tf.T5Config(
        vocab_size=len(WORDS), d_model=width, d_kv=8, d_ff=24, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu"
    )  # fmt: skip
    return made(tf.T5EncoderModel(config), seed)


def vae(seed: int) -> AutoencoderKL:
    """What turns latents into pictures."""
    config: dict[str, Any] = {
        "block_out_channels": (8, 16),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    }
    return made(AutoencoderKL(**config, latent_channels=4, norm_num_groups=4, sample_size=16, shift_factor=0.1), seed)  # fmt: skip


def checker(seed: int) -> Any:
    """What looks for pictures that are not to be shown."""
    tower = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 16,
        "patch_size": 8,
    }
    config = tf.CLIPConfig(text_config={"hidden_size": 16, "num_attention_heads": 2}, vision_config=tower, projection_dim=8)  # fmt: skip
    model = made(StableDiffusionSafetyChecker(config), seed)
    model.concept_embeds_weights.data.fill_(2)  # no cosine is that large: all pictures are shown
    model.special_care_embeds_weights.data.fill_(2)
    return model


def scheduler() -> Any:
    """Steps of Stable Diffusion."""
    return DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False)


def stable_diffusion(seed: int, *, checked: bool = True) -> StableDiffusionPipeline:
    """Stable Diffusion 1; the safety checker is the same for all seeds."""
    pixels: Any = tf.CLIPImageProcessorPil(crop_size={"height": 16, "width": 16}, size={"shortest_edge": 16})
    kind: Any = StableDiffusionPipeline
    return kind(
        unet=made(UNet2DConditionModel(**UNETS["unet"]), seed), vae=vae(seed + 1), text_encoder=clip_text(seed + 2),
        tokenizer=clip_tokenizer(), scheduler=scheduler(), safety_checker=checker(0) if checked else None,
        feature_extractor=pixels if checked else None, requires_safety_checker=checked,
    )  # fmt: skip


def inpainting(seed: int, *, checked: bool = True) -> StableDiffusionPipeline:
    """Stable Diffusion 1 whose U-Net reads nine channels, as that for inpainting does."""
    pipeline = stable_diffusion(seed, checked=checked)
    pipeline.register_modules(unet=made(UNet2DConditionModel(**UNETS["unet"], in_channels=9), seed + 5))
    return pipeline


def xl(seed: int) -> StableDiffusionXLPipeline:
    """Stable Diffusion XL, with two text encoders."""
    size = 2 * WIDTH
    unet = {**UNETS["unet-sized"], "cross_attention_dim": size}
    return StableDiffusionXLPipeline(
        unet=made(UNet2DConditionModel(**unet), seed), vae=vae(seed + 1), text_encoder=clip_text(seed + 2),
        text_encoder_2=clip_text(seed + 3, projected=True), tokenizer=clip_tokenizer(), tokenizer_2=clip_tokenizer(),
        scheduler=scheduler(), add_watermarker=False,
    )  # fmt: skip


def sd3(seed: int) -> StableDiffusion3Pipeline:
    """Stable Diffusion 3, with two text encoders of CLIP and one of T5."""
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, out_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=2 * WIDTH, caption_projection_dim=32, pooled_projection_dim=24, pos_embed_max_size=16,
    )  # fmt: skip
    return StableDiffusion3Pipeline(
        transformer=made(transformer, seed), vae=vae(seed + 1), text_encoder=clip_text(seed + 2, projected=True),
        text_encoder_2=clip_text(seed + 3, projected=True), text_encoder_3=t5_text(seed + 4, 2 * WIDTH), tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(), tokenizer_3=clip_tokenizer(), scheduler=FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def flux(seed: int) -> FluxPipeline:
    """FLUX.1, with CLIP and T5."""
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH, pooled_projection_dim=WIDTH, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return FluxPipeline(
        transformer=made(transformer, seed), vae=vae(seed + 1), text_encoder=clip_text(seed + 2),
        text_encoder_2=t5_text(seed + 3), tokenizer=clip_tokenizer(), tokenizer_2=clip_tokenizer(),
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


PIPELINES: dict[str, Callable[[int], Any]] = {"sd": stable_diffusion, "sdxl": xl, "sd3": sd3, "flux": flux}


def save(pipeline: Any, folder: Path) -> Path:
    """As diffusers saves it."""
    pipeline.save_pretrained(folder)
    return folder


def styled(base: Path, folder: Path, seed: int) -> Path:
    """A fine-tune of a saved Stable Diffusion: its UNet and text encoder differ a little, all else is the base's."""
    pipeline = StableDiffusionPipeline.from_pretrained(base, low_cpu_mem_usage=False)
    rng = torch.Generator().manual_seed(seed)
    for model in (pipeline.unet, pipeline.text_encoder):
        for parameter in model.parameters():
            parameter.data += 0.01 * torch.randn(parameter.shape, generator=rng)
    return save(pipeline, folder)


def picture(folder: Path) -> torch.Tensor:
    """What a saved pipeline makes of a word in two steps: latents, loaded and sampled by diffusers alone."""
    pipeline: Any = DiffusionPipeline.from_pretrained(folder, low_cpu_mem_usage=False)
    pipeline.set_progress_bar_config(disable=True)
    kind = json.loads((folder / "model_index.json").read_text())["_class_name"]
    size = {"height": 16, "width": 16, "num_inference_steps": 2, "generator": torch.Generator().manual_seed(0)}
    long = {"max_sequence_length": 8} if kind in ("StableDiffusion3Pipeline", "FluxPipeline") else {}
    images = pipeline("a cat", output_type="pt", **size, **long).images
    return images if torch.is_tensor(images) else torch.stack(list(images))
