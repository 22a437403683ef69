"""UNets of Stable Diffusion: the law, what refutes wrong texts, a moved copy that comes back, configs refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

import isomerge
from archs.test_mutants import mutated
from families import MUTANTS
from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.symmetry.completeness import check_complete
from isomerge.symmetry.language.spec import coverage
from mutants import Mutant
from solve.disguises import disguise
from toys import Toy, outputs, relative, save_toy, tensors, write_toy
from unet_models import UNETS

INSIDE = re.compile(
    r"conv1|time_emb_proj|resnets\.\d\.norm2|conv2\.weight|attn\d.*\.weight|ff\.net.*\.weight|(time|add|class)_embedding\.(lin|w)"
)
"""What a random element of everything moves."""


@pytest.mark.parametrize("name", list(UNETS))
def test_the_law(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """All spaces at once change what is inside of the blocks, and no output."""
    model = toy(name)
    recognise(model.folder)
    moved = model.drawn(None)
    still = {k for k, v in model.stored.items() if bool((moved[k] == v).all())}
    assert {"conv_in.weight", "conv_out.weight", "conv_norm_out.weight"} <= still
    assert not [name for name in still if INSIDE.search(name)]
    assert relative(outputs(write_toy(model, moved, tmp_path / "out")), model.reference) < model.tolerance


@pytest.mark.parametrize("space", ["d0_g", "d0_c", "d0_s", "d0_gb", "d0_tb", "u1_u", "u1_qk2", "emb"])
def test_a_space_alone(space: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Each of a few spaces and shifts changes weights, and no output."""
    assert toy("unet").law([space], tmp_path / "out").holds


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.toy in UNETS], ids=lambda m: m.wrong)
def test_rejected(mutant: Mutant, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Moved by what the wrong text calls a symmetry, the UNet is another function."""
    assert 1e-3 < mutated(toy(mutant.toy), mutant).law([mutant.space], tmp_path / "out").error < math.inf


def test_a_moved_copy_comes_back(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Aligned, the weights are those of the anchor again; what is left fixed is told of."""
    model = toy("unet")
    moved = disguise("unet", model.folder, tmp_path / "moved", 3)
    _, report = isomerge.align(moved, onto=model.folder, out=tmp_path / "back")
    assert max(float((t - model.stored[k]).abs().max()) for k, t in tensors(tmp_path / "back").items()) < 1e-10
    assert report["distance"]["before"] > 1
    assert [part["tensors"] for part in report["fixed"]] == [6]


DOWN, CROSSED, UP, CROSSED_UP = "DownBlock2D", "CrossAttnDownBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"
PUBLISHED: dict[str, dict[str, Any]] = {
    "sd15": {"cross_attention_dim": 768},
    "sd21": {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True},
    "xl": {"cross_attention_dim": 2048, "attention_head_dim": [5, 10, 20], "use_linear_projection": True,
        "block_out_channels": (320, 640, 1280), "transformer_layers_per_block": [1, 2, 10],
        "down_block_types": (DOWN, CROSSED, CROSSED), "up_block_types": (CROSSED_UP, CROSSED_UP, UP),
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816},
}  # fmt: skip


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_sizes(name: str) -> None:
    """Every tensor of the published UNets has one line, of its shape, from the keys that their configs have."""
    with torch.device("meta"):
        model = UNet2DConditionModel(**PUBLISHED[name])
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    spec = spec_for({"_class_name": "UNet2DConditionModel", **PUBLISHED[name]}, shapes=shapes)
    matches = coverage(spec, shapes)
    check_complete(spec, matches)
    assert len(matches) == len(shapes) == {"sd15": 686, "sd21": 686, "xl": 1680}[name]
    assert {spec.sizes[f"{part}_h"] for part in ("d1", "m")} == ({8} if name == "sd15" else {10, 20})


def test_weights_block_by_block(tmp_path: Path) -> None:
    """Filters on parts of names give the blocks weights of their own."""
    a, b = (save_toy("unet", tmp_path / str(seed), seed=seed) for seed in (0, 1))
    filters = [("down_blocks.0.attentions", 0.0), ("mid_block", 1.0), ("up_blocks.1.resnets.0", 0.25)]
    t = [*({"filter": part, "value": value} for part, value in filters), {"value": 0.5}]
    content: dict[str, Any] = {
        "merge_method": "task_arithmetic",
        "base_model": str(a),
        "models": [{"model": str(b)}],
    }
    content["parameters"] = {"weight": t}
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(content))
    isomerge.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    one, two, merged = map(tensors, (a, b, tmp_path / "out"))
    for name, tensor in one.items():
        share = next((value for part, value in filters if part in name), 0.5)
        assert torch.allclose(merged[name], tensor + share * (two[name] - tensor), atol=1e-12), name
    assert all(any(part in name for name in one) for part, _ in filters)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"dual_cross_attention": True}, "dual_cross_attention is true"),
        ({"resnet_time_scale_shift": "scale_shift"}, "resnet_time_scale_shift is not default"),
        ({"addition_embed_type": "text_image"}, "addition_embed_type is not text_time"),
        ({"only_cross_attention": [False, False, True, False]}, "only_cross_attention is true"),
        ({"block_out_channels": [320, 640, 1280, 1000]}, "width // g = 1000 // 32 is not a whole number"),
    ],
)
def test_refused(config: dict[str, Any], says: str) -> None:
    """What the text does not describe."""
    with pytest.raises(IsomergeError, match=says):
        spec_for({"_class_name": "UNet2DConditionModel", **config})
