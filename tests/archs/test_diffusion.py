"""Diffusion transformers: files as diffusers names them, what it loads, and the configs that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import isomerge
from diffusion_models import DIFFUSION, inputs
from isomerge.archs import spec_for
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.weights import weights_name
from isomerge.errors import IsomergeError
from solve.disguises import disguise
from toys import Toy, config_of, outputs, relative

SMALL = 20_000


@pytest.mark.parametrize("size", [SMALL, 1 << 30])
def test_files_have_the_names_that_diffusers_looks_for(size: int, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """One file or many with their index, read again; the function is the same."""
    one = toy("flux")
    moved = disguise("flux", one.folder, tmp_path / "moved", 3)
    isomerge.merge([one.folder, moved], out=tmp_path / "out", out_shard_size=size)
    names = {file.name for file in (tmp_path / "out").glob("*model*.safetensors*")}
    assert all(name.startswith("diffusion_pytorch_model") for name in names)
    assert ("diffusion_pytorch_model.safetensors.index.json" in names) == (len(names) > 1) == (size == SMALL)
    assert relative(outputs(tmp_path / "out"), one.reference) < one.tolerance
    assert config_of(tmp_path / "out") == config_of(one.folder)
    assert set(open_checkpoint(tmp_path / "out").tensors) == set(one.stored)


def test_names_of_weights() -> None:
    """A class of diffusers, a model type of transformers, and what has neither."""
    assert weights_name({"_class_name": "FluxTransformer2DModel"}) == "diffusion_pytorch_model.safetensors"
    assert weights_name({"model_type": "bert", "_class_name": "x"}) == weights_name({}) == "model.safetensors"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"_class_name": "Transformer2DModel", "norm_type": "ada_norm_single"}, "norm_type is not ada_norm_zero"),
        (
            {"_class_name": "DiTTransformer2DModel", "norm_elementwise_affine": True},
            "norm_elementwise_affine is true",
        ),
        ({"_class_name": "SD3Transformer2DModel", "qk_norm": "layer_norm"}, "qk_norm is neither rms_norm nor null"),
        ({"_class_name": "SD3Transformer2DModel", "caption_projection_dim": 7}, "caption_projection_dim is not"),
        ({"_class_name": "AutoencoderKL"}, "no spec for model_type 'AutoencoderKL'"),
    ],
)
def test_refused(config: dict[str, Any], says: str) -> None:
    """What the texts do not describe."""
    with pytest.raises(IsomergeError, match=says):
        spec_for(config)


@pytest.mark.parametrize("name", list(DIFFUSION))
def test_diffusers_computes_the_same(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """diffusers loads what was written, and the references compute what it does.

    It computes sinusoids, norms and rotations in float32.
    """
    one = toy(name)
    moved = disguise(name, one.folder, tmp_path / "moved", 3)
    isomerge.align(moved, onto=one.folder, out=tmp_path / "out")
    for folder in (one.folder, moved, tmp_path / "out"):
        config = json.loads((folder / "config.json").read_text())
        model = getattr(diffusers, config["_class_name"]).from_pretrained(folder, torch_dtype=torch.float64).eval()
        with torch.no_grad():
            found = model(**inputs(config, torch.float64)).sample
        assert relative(found, one.reference) < 1e-6
