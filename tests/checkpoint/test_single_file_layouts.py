"""Layouts of single files: diffusers converts them to what their parts are; merged, the same layout comes out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from diffusers.loaders import single_file_utils as theirs
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.checkpoint.single_file import is_single_file, open_part, parts_of
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from pipeline_models import clip_text, t5_text
from single_file_layouts import HEAD, WIDTH, Tensors, flux, open_clip, sd3, vae

XL = "conditioner.embedders.1.model."
UNET = "model.diffusion_model."


def saved(path: Path, *parts: Tensors) -> Path:
    save_file({name: x for part in parts for name, x in part.items()}, path)
    return path


def read(path: Path, part: str) -> Tensors:
    found = open_part(f"{path}:{part}")
    return {name: found.read(name) for name in found.tensors}


def same(mine: Tensors, wanted: Tensors) -> None:
    assert mine.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(mine[name], tensor), name


def flux_by_diffusers(tensors: Tensors) -> Tensors:
    """Its own function, which knows one width alone, of another one."""
    text = inspect.getsource(theirs.convert_flux_transformer_checkpoint_to_diffusers)
    assert text.count("inner_dim = 3072") == 1
    known = dict(vars(theirs))
    exec(text.replace("inner_dim = 3072", f"inner_dim = {WIDTH}"), known)
    return known["convert_flux_transformer_checkpoint_to_diffusers"](dict(tensors))


@pytest.mark.parametrize(("start", "guided"), [("", True), (UNET, False)])
def test_flux(start: str, guided: bool, tmp_path: Path) -> None:
    """Alone, and under the beginning that it has beside other parts; its config makes the class that takes it."""
    tensors = flux(0, start, guided=guided)
    path = saved(tmp_path / "a.safetensors", tensors)
    assert is_single_file(path)
    same(read(path, "transformer"), flux_by_diffusers(tensors))
    config = {k: v for k, v in open_part(f"{path}:transformer").config.items() if k != "_class_name"}
    kind: Any = FluxTransformer2DModel
    model = kind(**config, axes_dims_rope=(2, 2, 4))
    model.load_state_dict(read(path, "transformer"), strict=True)
    assert (model.config.attention_head_dim, model.config.guidance_embeds) == (HEAD, guided)
    assert list(parts_of(path)) == ["transformer"]


@pytest.mark.parametrize(("start", "later"), [(UNET, False), ("", True)])
def test_stable_diffusion_3(start: str, later: bool, tmp_path: Path) -> None:
    """As diffusers converts it, in a config that makes the class that takes it; merged, the layout comes out. Fails
    where the last block's scale and shift keep their places."""
    files = [saved(tmp_path / f"{seed}.safetensors", sd3(seed, start, later=later)) for seed in (0, 1)]
    path = files[0]
    assert list(parts_of(path)) == ["transformer"]
    part = open_part(f"{path}:transformer")
    same(read(path, "transformer"), theirs.convert_sd3_transformer_checkpoint_to_diffusers(load_file(path)))
    kind: Any = SD3Transformer2DModel
    model = kind(**{k: v for k, v in part.config.items() if k != "_class_name"}, sample_size=8)
    model.load_state_dict(read(path, "transformer"), strict=True)
    assert (model.config.num_attention_heads, model.config.patch_size) == (2, 2)
    assert recognise(f"{path}:transformer").spec.sizes["h"] == 2
    isomerge.merge(files, out=tmp_path / "out", align=False)
    one, two, out = map(load_file, (*files, tmp_path / "out" / "0.safetensors"))
    assert out.keys() == one.keys()
    for name, x in one.items():
        torch.testing.assert_close(out[name], (x + two[name]) / 2)


def test_the_text_encoders_of_stable_diffusion_3(tmp_path: Path) -> None:
    """Two of CLIP and T5's encoder, whose names in the file are transformers' behind a beginning: their configs make the
    classes that take them."""
    models = {"clip_l": clip_text(0), "clip_g": clip_text(1, projected=True), "t5xxl": t5_text(2)}
    tensors = sd3(0, UNET)
    for name, model in models.items():
        for key, x in model.state_dict().items():
            body = "text_model." * (name != "t5xxl" and key.startswith(("encoder", "embeddings", "final")))
            tensors[f"text_encoders.{name}.transformer.{body}{key}"] = x.clone()
    path = saved(tmp_path / "a.safetensors", tensors)
    parts = parts_of(path)
    assert list(parts) == ["transformer", "text_encoder", "text_encoder_2", "text_encoder_3"]
    assert [part.kind for part in parts.values()][1:] == [
        "CLIPTextModel",
        "CLIPTextModelWithProjection",
        "T5EncoderModel",
    ]
    assert parts["text_encoder_2"].config["projection_dim"] == 12
    config = tf.T5Config(**{k: v for k, v in parts["text_encoder_3"].config.items() if k != "model_type"})
    missing = tf.T5EncoderModel(config).load_state_dict(read(path, "text_encoder_3"), strict=False)
    assert not missing.unexpected_keys
    assert recognise(f"{path}:text_encoder_3").spec.sizes["eff"] == 24


def test_the_second_tower_of_xl(tmp_path: Path) -> None:
    """In OpenCLIP's layout; the temperature is left in the rest."""
    tensors = open_clip(0, XL)
    path = saved(tmp_path / "a.safetensors", tensors, {f"{UNET}x": torch.ones(2)})
    config = open_part(f"{path}:text_encoder_2").config
    model = tf.CLIPTextModelWithProjection(tf.CLIPTextConfig(**{k: v for k, v in config.items() if k not in ("model_type", "architectures")}))  # fmt: skip
    wanted = theirs.convert_open_clip_checkpoint(model, dict(tensors), prefix=XL)
    same(read(path, "text_encoder_2"), wanted)
    own = {n: tuple(x.shape) for n, x in model.state_dict().items()}
    assert {n.replace("text_model.", ""): tuple(x.shape) for n, x in wanted.items()} == {n.replace("text_model.", ""): s for n, s in own.items()}  # fmt: skip
    assert list(parts_of(path)["rest"].pieces) == [f"{XL}logit_scale", f"{UNET}x"]
    assert recognise(f"{path}:text_encoder_2").spec.sizes["ff"] == 24
    older = saved(tmp_path / "b.safetensors", open_clip(0, "cond_stage_model.model."), {f"{UNET}x": torch.ones(2)})
    same(read(older, "text_encoder"), wanted)  # Stable Diffusion 2


@pytest.mark.parametrize(("kernels", "start"), [(True, "first_stage_model."), (False, "vae.")])
def test_the_autoencoder(kernels: bool, start: str, tmp_path: Path) -> None:
    """Whether attention is stored as kernels or as matrices."""
    tensors = vae(0, start, kernels=kernels)
    path = saved(tmp_path / "a.safetensors", tensors, {f"{UNET}x": torch.ones(2)})
    config = {k: v for k, v in open_part(f"{path}:vae").config.items() if k != "_class_name"}
    kind: Any = AutoencoderKL
    model = kind(**config)
    same(read(path, "vae"), theirs.convert_ldm_vae_checkpoint(dict(tensors), dict(model.config)))
    model.load_state_dict(read(path, "vae"), strict=True)


def test_merged_files_have_the_layout_of_the_first(tmp_path: Path) -> None:
    """Every tensor the mean, also where the other file stores attention otherwise."""
    files = []
    for number, kernels in enumerate((True, False)):
        parts = (flux(number, UNET), open_clip(number, XL), vae(number, "vae.", kernels=kernels))
        files.append(saved(tmp_path / f"{number}.safetensors", *parts))
    report = isomerge.merge(files, out=tmp_path / "out", align=False)
    assert {name: row["how"] for name, row in report["components"].items()} == {
        "transformer": "merged", "text_encoder_2": "merged", "vae": "merged", "rest": "merged",
    }  # fmt: skip
    one, two, out = map(load_file, (*files, tmp_path / "out" / "0.safetensors"))
    assert out.keys() == one.keys()
    for name, x in one.items():
        torch.testing.assert_close(out[name], (x + two[name].reshape(x.shape)) / 2)


def test_a_moved_flux_comes_back(tmp_path: Path) -> None:
    """By a random element of every space, through reader and writer of its layout."""
    first = flux(0)
    a = saved(tmp_path / "a.safetensors", first)
    model = recognise(f"{a}:transformer")
    blocks = {b: model.assemble(b, torch.float64).clone() for b in model.blocks}
    names = [n for n in (*model.spec.spaces, *(s.name for s in model.spec.shifts)) if n not in ("res", "emb")]
    random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1), names).act(blocks)
    named = {model.names[n]: t.float() for b, x in blocks.items() for n, t in b.split(x)}
    moved = dict(first)
    for new, piece in parts_of(a)["transformer"].pieces.items():
        target = moved[piece.name] = moved[piece.name].clone()
        target[piece.first : piece.first + piece.stored[0]] = piece.turned(named[new]).reshape(piece.stored)
    b = saved(tmp_path / "b.safetensors", moved)
    isomerge.merge([a, b], out=tmp_path / "out", align=True)
    out = load_file(tmp_path / "out" / "a.safetensors")
    assert max(float((moved[n] - x).abs().max()) for n, x in first.items()) > 0.1
    for name, x in first.items():
        torch.testing.assert_close(out[name], x, rtol=2e-3, atol=2e-3)


def test_what_is_not_mapped_is_merged_as_it_is_stored(tmp_path: Path) -> None:
    """A FLUX with scales of quantised weights, or of another generation, an unfamiliar tower or autoencoder: all of it is in
    the rest, and a part that is not there is named."""
    quantised = {**flux(0), "double_blocks.0.img_attn.qkv.scale_weight": torch.ones(())}
    scaled = {**flux(0), "double_blocks.0.img_mlp.0.scale_weight": torch.ones(())}
    newer = {name: x for name, x in flux(0).items() if "_mod." not in name}
    tower = {**open_clip(0, XL), f"{XL}visual.conv1.weight": torch.ones(2)}
    coder = {**vae(0, "vae."), "vae.decoder.mid.attn_2.q.weight": torch.ones(2, 2)}
    for number, tensors in enumerate((quantised, scaled, newer, tower, coder)):
        path = saved(tmp_path / f"{number}.safetensors", tensors, {f"{UNET}x": torch.ones(2)})
        assert list(parts_of(path)) == ["rest"]
        assert parts_of(path)["rest"].pieces.keys() == load_file(path).keys()
    with pytest.raises(IsomergeError, match="no part 'transformer': there are rest"):
        open_part(f"{tmp_path / '0.safetensors'}:transformer")


NO_SHAPES = {
    "transformer": ({}, "img_in.weight", (8,)),
    "no heads": ({}, "double_blocks.0.img_attn.norm.query_norm.scale", (0,)),
    "text_encoder_2": (open_clip(1, XL), f"{XL}token_embedding.weight", (8,)),
    "vae": (vae(2, "vae.", kernels=True), "vae.encoder.conv_in.weight", (8,)),
}


@pytest.mark.parametrize("part", NO_SHAPES)
def test_shapes_that_no_model_has_are_left_as_they_are_stored(part: str, tmp_path: Path) -> None:
    """Names of a part, and a tensor of which its sizes cannot be told."""
    beside, name, shape = NO_SHAPES[part]
    path = saved(tmp_path / "a.safetensors", flux(0), beside, {name: torch.zeros(shape)})
    parts = parts_of(path)
    assert name in parts["rest"].pieces
    assert part not in parts
