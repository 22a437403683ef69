"""Twins for the engine's tests: the same function in other weights, on disk, by random block-local elements."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from isomerge.evidence.law import beside_streams, random_alignment, random_turn, with_streams
from toys import Toy, config_of, load_toy, save_toy, write_toy


def local_names(toy: Toy) -> list[str]:
    """The block-local spaces and shifts of a toy: all but the residual stream's."""
    return [*(n for n in toy.spec.spaces if n not in toy.spec.residual_names), *(s.name for s in toy.spec.shifts)]


def single(name: str, folder: Path, seed: int = 0) -> Path:
    """A randomised toy in float32."""
    return save_toy(name, folder, seed=seed, dtype=torch.float32)


def disguise(name: str, folder: Path, out: Path, seed: int, condition: float = 4.0) -> Path:
    """The model in ``folder`` moved by a random element of every block-local space and shift."""
    toy = load_toy(name, folder)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(seed)
    random_alignment(toy.spec, toy.blocks, rng, local_names(toy), condition=condition).act(blocks)
    moved = toy.named(blocks)
    assert toy.change(moved) > 0.01
    return write_toy(toy, moved, out)


def keep_streams(name: str, folder: Path, out: Path, seed: int) -> Path:
    """The model moved by random elements of all local spaces, with new gains in its layers; its streams stay what
    they are."""
    toy = load_toy(name, folder)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(seed)
    random_alignment(toy.spec, toy.blocks, rng, beside_streams(toy.spec)).act(blocks)
    moved = toy.named(blocks)
    assert toy.change(moved) > 0.01
    return write_toy(toy, moved, out)


def turn(name: str, folder: Path, out: Path, seed: int, groups: str = "largest", *, gains: bool = True) -> Path:
    """The model moved by random elements of its residual stream and all local spaces, with new gains."""
    toy = load_toy(name, folder)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(seed)
    spec = with_streams(toy.spec, groups)
    random_turn(spec, toy.blocks, lambda b: blocks[b].double(), rng, gains=gains).act(blocks)
    moved = toy.named(blocks)
    assert toy.change(moved) > 0.01
    return write_toy(toy, moved, out)


def untied(folder: Path, out: Path) -> Path:
    """The same function with a head of its own."""
    found = {n: t.clone() for n, t in load_file(folder / "model.safetensors").items()}
    table = next(n for n in found if n.endswith(("wte.weight", "embed_tokens.weight", "shared.weight")))
    found["lm_head.weight"] = found[table].clone()
    out.mkdir()
    save_file(found, out / "model.safetensors", metadata={"format": "pt"})
    config = {**config_of(folder), "tie_word_embeddings": False}
    (out / "config.json").write_text(json.dumps(config))
    return out


def perturb(folder: Path, out: Path, relative: float, *, seed: int = 0, only: str | None = None) -> Path:
    """A copy with Gaussian noise of that relative size on every float tensor, or on those whose name has
    ``only``."""
    rng, found, hit = torch.Generator().manual_seed(seed), {}, 0
    for file in sorted(folder.glob("model*.safetensors")):
        for name, tensor in load_file(file).items():
            found[name] = tensor
            if tensor.is_floating_point() and (only is None or only in name):
                noise = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
                noise *= tensor.double().norm() / noise.norm() * relative
                found[name] = (tensor.double() + noise).to(tensor.dtype)
                hit += 1
    assert hit
    out.mkdir()
    save_file(found, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file under a folder and its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def but_for_advice(folder: Path) -> dict[str, Any]:
    """All that a merge writes, without what it advises: a recipe's keys to those who gave one, else options."""
    files: dict[str, Any] = files_of(folder)
    for name in ("isomerge.json", "README.md"):
        files[name] = files[name].decode().replace("say `align: true`", "leave --no-align out")
    report = json.loads(files["isomerge.json"])
    report["verdict"].pop("next")
    report["files"].pop("README.md")
    card = [line for line in files["README.md"].splitlines() if not line.startswith("- ")]
    return {**files, "isomerge.json": {**report, "digest": None}, "README.md": card}


def with_layers_exchanged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a model with its layers 0 and 1 in each other's place."""
    number = {".0.": ".1.", ".1.": ".0."}
    return {next((n.replace(a, b) for a, b in number.items() if a in n), n): t for n, t in tensors.items()}


def write_like(folder: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """A copy of a single-file checkpoint with changed tensors."""
    (file,) = folder.glob("*.safetensors")
    found = {n: t.clone() for n, t in load_file(file).items()}
    change(found)
    out.mkdir()
    save_file(found, out / file.name, metadata={"format": "pt"})
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    return out
