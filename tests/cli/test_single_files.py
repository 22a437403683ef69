"""Stable Diffusion in one file: diffusers reads the names as we do; merged, the same layout comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import isomerge as door
import single_file_layouts
from isomerge.checkpoint.pipeline import Component
from isomerge.checkpoint.single_file import alone, open_part, parts_of
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from single_file_models import TEXT, UNETS, single_file, unet_of


@pytest.mark.parametrize("kind", list(UNETS))
def test_names_and_config_are_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    """Tensor by tensor what diffusers converts the file to, in a config of the same function."""
    path = single_file(kind, tmp_path / "a.safetensors", 0)
    unet = unet_of(kind, 0)
    config: Any = dict(unet.config)
    wanted = convert_ldm_unet_checkpoint(dict(load_file(path)), config)
    part = open_part(f"{path}:unet")
    assert part.tensors.keys() == wanted.keys() == unet.state_dict().keys()
    assert all(torch.equal(part.read(name), tensor) for name, tensor in wanted.items())
    known = {"_class_name", "attention_head_dim", "transformer_layers_per_block"}
    plain = json.loads(json.dumps({key: config.get(key) for key in part.config if key not in known}))
    assert plain == {key: value for key, value in part.config.items() if key not in known}
    assert recognise(f"{path}:unet").spec.sizes["m_h"] == (8 if kind == "sd1" else 2)
    assert {name: one.kind for name, one in parts_of(path).items()} == {
        "unet": "UNet2DConditionModel",
        "text_encoder": "CLIPTextModel",
        "schedule": "schedule",
        "rest": "rest",
    }
    assert recognise(f"{path}:text_encoder").spec.sizes["ff"] == 24


def moved(path: Path, out: Path) -> Path:
    """The file with its UNet moved by a random element."""
    tensors = load_file(path)
    model = recognise(f"{path}:unet")
    blocks = {b: model.assemble(b, torch.float64).clone() for b in model.blocks}
    names = [n for n in (*model.spec.spaces, *(s.name for s in model.spec.shifts)) if n != "emb"]
    random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1), names).act(blocks)
    stored = parts_of(path)["unet"].names
    for block, tensor in blocks.items():
        for name, one in block.split(tensor):
            tensors[stored[model.names[name]]] = one.float().contiguous().clone()
    save_file(tensors, out)
    return out


def test_a_moved_file_comes_back(tmp_path: Path) -> None:
    """Aligned and merged with a moved copy, the file has the first one's weights, under the names of the layout."""
    a = single_file("sd1", tmp_path / "a.safetensors", 0)
    b = moved(a, tmp_path / "b.safetensors")
    report = door.merge([a, b], out=tmp_path / "out", align=True)
    first, second, merged = map(load_file, (a, b, tmp_path / "out" / "a.safetensors"))
    assert merged.keys() == first.keys()
    assert max(float((second[name] - tensor).abs().max()) for name, tensor in first.items()) > 0.1
    assert max(float((merged[name] - tensor).abs().max()) for name, tensor in first.items()) < 1e-4
    how = {name: row["how"] for name, row in report["components"].items()}
    assert how == {"unet": "merged", "text_encoder": "copied", "schedule": "copied", "rest": "copied"}
    assert (tmp_path / "out" / "reports" / "unet" / "isomerge.json").is_file()
    for folder in ("out", "out/reports/unet"):  # whose weights are elsewhere, which is no damage
        with pytest.raises(IsomergeError, match="no report has the checksum of what is in one file"):
            door.fsck(tmp_path / folder)


def test_parts_by_methods_of_their_own(isomerge: Callable, tmp_path: Path) -> None:
    """A recipe's words for parts; what has no spec is merged as stored, and named."""
    a, b = (single_file("xl", tmp_path / f"{n}.safetensors", n) for n in (0, 5))
    content = {
        "merge_method": "linear",
        "models": [{"model": str(path), "parameters": {"weight": 0.5}} for path in (a, b)],
        "align": True,
        "text_encoder": f"keep:{b}",
        "unet": {"align": False, "models": [{"model": str(a), "parameters": {"weight": 0.75}}, {"model": str(b), "parameters": {"weight": 0.25}}]},
    }  # fmt: skip
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(content))
    said = isomerge("merge", tmp_path / "recipe.yml", tmp_path / "out", "--no-report", "--dtype", "float16")
    assert said.code == 0, said.err
    told = " ".join(f"{said.out} {said.err}".split())
    assert f"text_encoder: kept from {b}." in told
    assert "rest: merged as stored" in told
    assert "not aligned, as there is no spec for its class: 2 of first_stage_model" in told
    one, two, merged = map(load_file, (a, b, tmp_path / "out" / a.name))
    for name, tensor in one.items():
        share = 0.25 if "diffusion_model" in name else 1.0 if TEXT["xl"] in name else 0.5
        wanted = tensor + share * (two[name] - tensor)
        assert torch.allclose(merged[name].float(), wanted, atol=4e-3), name
    with safe_open(tmp_path / "out" / a.name, "pt") as file:
        assert set(file.keys()) == one.keys()


def test_files_that_do_not_fit(isomerge: Callable, tmp_path: Path) -> None:
    """Another width, a part that is not there: one sentence, and nothing is written."""
    a, b = single_file("sd1", tmp_path / "a.safetensors", 0), single_file("xl", tmp_path / "b.safetensors", 0)
    said = isomerge("merge", a, b, "-o", tmp_path / "out")
    assert said.code == 2
    assert f"{a}:unet" in "".join(said.err.split("\n"))
    assert not (tmp_path / "out").exists()
    newer = tmp_path / "newer.safetensors"
    save_file({"model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight": torch.ones(3)}, newer)
    assert list(parts_of(newer)) == ["rest"]  # of Stable Diffusion 3 one tensor: merged as it is stored
    with pytest.raises(IsomergeError, match=r"no part 'vae': there are unet, text_encoder, schedule, rest"):
        open_part(f"{a}:vae")


def test_an_autoencoder_of_its_own(tmp_path: Path) -> None:
    """`vae: keep:FILE` puts the tensors of an autoencoder's own file, whose names have no beginning, into a whole file
    and into a pipeline's folder; one of other sizes is refused."""
    kept = {name: tensor.contiguous() for name, tensor in single_file_layouts.vae(3, "").items()}
    save_file(kept, tmp_path / "vae.safetensors")
    files = []
    for seed, name in enumerate("ab"):
        path = single_file("sd1", tmp_path / f"{name}.safetensors", 0)
        stored = {n: t for n, t in load_file(path).items() if not n.startswith("first_stage_model.")}
        save_file({**stored, **single_file_layouts.vae(seed, "first_stage_model.")}, path)
        files.append({"model": str(path)})
    content = {"merge_method": "linear", "models": files, "vae": f"keep:{tmp_path}/vae.safetensors"}
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(content))
    door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    merged = load_file(tmp_path / "out" / "a.safetensors")
    assert all(torch.equal(merged[f"first_stage_model.{name}"], tensor) for name, tensor in kept.items())
    part: Any = alone("vae", f"{tmp_path}/vae.safetensors")
    AutoencoderKL(**{k: v for k, v in part.config().items() if k[0] != "_"}, scaling_factor=0.5).save_pretrained(
        tmp_path / "vae"
    )
    replace(part, beside=Component("vae", tmp_path / "vae", "diffusers", part.kind)).copy(tmp_path / "copied")
    loaded: Any = AutoencoderKL.from_pretrained(tmp_path / "copied", low_cpu_mem_usage=False)
    assert loaded.config.scaling_factor == 0.5
    assert all(torch.equal(part.opened().read(name), tensor) for name, tensor in loaded.state_dict().items())
    del kept["decoder.conv_in.bias"]
    save_file(kept, tmp_path / "vae.safetensors")
    with pytest.raises(IsomergeError, match=r"decoder\.conv_in\.bias has shape \(64,\) in .* and none in"):
        door.merge(tmp_path / "recipe.yml", out=tmp_path / "other")
