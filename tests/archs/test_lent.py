"""Layers that read the keys and values of another one: Gemma 3n and 4, from configs of every form, with idle
weights, layer by layer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.archs import spec_for
from toys import config_of, save_toy

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 4: layers 3 and 4 read the keys of layer 1, and layer 5 those of layer 2, which have wider
    heads."""
    return save_toy("gemma4_text", tmp_path_factory.mktemp("lent") / "a", dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "heads"),
    [
        ({}, (2, 16, 2, 6)),
        ({"per_layer_config": None, "global_head_dim": 32}, (2, 32, 4, 12)),
        ({"per_layer_config": None}, (2, 512, 64, 192)),
        ({"per_layer_config": None, "attention_k_eq_v": True, "num_global_key_value_heads": 3}, (3, 512, 64, 192)),
        ({"per_layer_config": {"02": {"head_dim": 24, "num_key_value_heads": 6}}}, (6, 24, 3, 9)),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, (2, 16, 8, 0)),
        ({"rope_parameters": None}, (2, 16, 2, 6)),
    ],
)
def test_heads_of_full_attention(change: dict[str, Any], heads: tuple[int, ...], lent: Path) -> None:
    """As published configs tell them, and as transformers writes them again."""
    spec = spec_for({**config_of(lent), **change})
    assert tuple(spec.sizes[name] for name in ("fkv", "fov", "fpair", "o")) == heads
    assert ("osg" in spec.spaces) == (heads[-1] > 0)


def test_without_sharing_or_a_list_of_kinds(lent: Path) -> None:
    """Every layer has keys of its own, and the last of every six attends to all."""
    spec = spec_for({**config_of(lent), "layer_types": None, "num_hidden_layers": 12, "num_kv_shared_layers": 0})
    assert not {"rg", "frg", "rn1"} & spec.spaces.keys()
    wide = [n for n in range(12) if "fkv" in str(spec.match(f"layers.{n}.self_attn.k_proj.weight").line.axes)]
    assert wide == [5, 11]


def test_idle_keys_are_kept(lent: Path, tmp_path: Path) -> None:
    """Published files hold keys of layers that read those of others: they are kept, and need not be in the other
    model."""
    held = tmp_path / "held"
    shutil.copytree(lent, held)
    weights = load_file(held / WEIGHTS)
    idle = {f"model.layers.3.self_attn.{part}.weight": torch.randn(16, 48) for part in ("k_proj", "v_proj")}
    save_file(weights | idle, held / WEIGHTS, {"format": "pt"})
    for first, other in ((held, lent), (lent, held)):
        isomerge.merge([str(first), str(other)], out=str(tmp_path / "out"), spaces="none", overwrite=True)
        merged = load_file(tmp_path / "out" / WEIGHTS)
        assert merged.keys() == load_file(first / WEIGHTS).keys()
        assert all(torch.equal(merged[name], idle[name]) for name in idle.keys() & merged.keys())


def test_layers_have_weights_of_their_own(lent: Path, tmp_path: Path) -> None:
    """A gradient over the layers reaches each of those that lie along an axis of one."""
    other = tmp_path / "other"
    shutil.copytree(lent, other)
    weights = load_file(other / WEIGHTS)
    name = "model.layers.{}.self_attn.q_proj.weight"
    save_file(
        weights | {name.format(n): weights[name.format(n)] + 1 for n in range(6)}, other / WEIGHTS, {"format": "pt"}
    )
    recipe: dict[str, Any] = {
        "merge_method": "linear", "dtype": "float32", "parameters": {"normalize": False},
        "models": [{"model": str(lent), "parameters": {"weight": [1, 0]}}, {"model": str(other), "parameters": {"weight": [0, 1]}}],
    }  # fmt: skip
    (tmp_path / "recipe.yml").write_text(json.dumps(recipe))
    isomerge.merge(tmp_path / "recipe.yml", out=str(tmp_path / "out"))
    merged = load_file(tmp_path / "out" / WEIGHTS)
    gaps = [float((merged[name.format(n)] - weights[name.format(n)]).mean()) for n in range(6)]
    assert gaps == pytest.approx([n / 5 for n in range(6)], abs=1e-5)
