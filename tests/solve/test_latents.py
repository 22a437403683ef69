"""Latents between a norm and what reads it (DeepSeek's): turned once the norm's gains are folded into their readers.

Twins with rotated latents and other gains come back through disk, in every way; what is nearly such a twin is told.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

import isomerge
from depth import more
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.evidence.whole_group import whole_group
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.solve.pairs.in_place import without_stretching
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import elements_of
from run.near_twins import assert_told, near_twin
from run.twins import assert_known_everywhere
from toys import Toy, outputs, overwrite, relative, tensors, write_toy

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAMES = [
    "deepseek_v3",
    *more("kimi_linear", "longcat_flash", "axk2", "hy_v4", "deepseek_v4", "bailing_hybrid", "segformer"),
]


def turned(model: Toy, out: Path, seed: int = 1) -> Path:
    """The toy with its latents rotated, new gains over them, and all other spaces inside layers moved."""
    largest = with_streams(model.spec)
    spec, blocks = largest.without(largest.residual_names), model.fresh()
    assert spec.turned_latents
    rng = torch.Generator().manual_seed(seed)
    random_turn(spec, model.blocks, lambda block: blocks[block].double(), rng, condition=3.0, gains=True).act(
        blocks
    )
    moved = model.named(blocks)
    assert model.change(moved) > 0.1
    return write_toy(model, moved, out)


@pytest.mark.parametrize("name", NAMES)
def test_a_turned_twin_is_the_same_everywhere(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """One function for the class, `verify`, the fingerprint and the canonical form; `align` brings it back, and a merge
    keeps the function."""
    model = toy(name)
    assert_known_everywhere(model, turned(model, tmp_path / "twin"), tmp_path, merged=1e3 * model.tolerance)


def test_with_the_stream_and_back(toy: ToyMaker, tmp_path: Path) -> None:
    """Streams and latents turned at once come back with ``--spaces all``; the alignment that is written does it again,
    and undoes it."""
    model = toy("deepseek_v3")
    spec, blocks = with_streams(model.spec), model.fresh()
    rng = torch.Generator().manual_seed(3)
    random_turn(spec, model.blocks, lambda block: blocks[block].double(), rng, condition=3.0, gains=True).act(
        blocks
    )
    twin = write_toy(model, model.named(blocks), tmp_path / "twin")
    _, report = isomerge.align(twin, onto=model.folder, spaces="all", out=tmp_path / "back")
    assert report["distance"]["after"] < 1e-9 * report["distance"]["before"]
    element = tmp_path / "back" / "alignment.safetensors"
    isomerge.apply(element, twin, out=tmp_path / "again")
    isomerge.apply(element, tmp_path / "back", inverse=True, out=tmp_path / "there")
    for made, wanted in ((tmp_path / "again", tmp_path / "back"), (tmp_path / "there", twin)):
        wanted_tensors = tensors(wanted)
        assert all(torch.allclose(t, wanted_tensors[n], rtol=1e-8, atol=1e-9) for n, t in tensors(made).items())


@pytest.mark.parametrize("wrong", ["gains stay between", "the reader is not turned"])
def test_a_near_twin_is_told(wrong: str, toy: ToyMaker, tmp_path: Path) -> None:
    """A rotation that acts on one side only, or between gains that are not folded, is another function."""
    model = toy("deepseek_v3")
    rank, near = model.spec.sizes["lat"], tmp_path / "near"
    turn, _ = torch.linalg.qr(
        torch.randn(rank, rank, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    )
    weights = tensors(model.folder)
    down = next(n for n in weights if "layers.0" in n and "kv_a_proj" in n and n.endswith("weight"))
    up, gain = (down.replace("kv_a_proj_with_mqa", part) for part in ("kv_b_proj", "kv_a_layernorm"))
    assert float(weights[gain].std()) > 0.01
    moved = {down: torch.cat([turn @ weights[down][:rank], weights[down][rank:]])}
    if wrong == "gains stay between":
        moved[up] = weights[up] @ turn.mT
    shutil.copytree(model.folder, near)
    overwrite(near, weights | moved)
    assert relative(outputs(near), model.reference) > 1e-3
    assert_told(model.folder, near)


FUSED = more("decode_head.linear_c.0.proj.weight", "decode_head.linear_fuse.weight")
"""Both sides of a map into another basis than that of what it writes, of fewer numbers than it writes."""


def fused(model: Model, condition: float = 3.0) -> Alignment:
    """Another basis for what SegFormer's decoder fuses of its first stage."""
    assert model.spec.sizes["res0"] + 1 < model.spec.sizes["c0"]
    rng = torch.Generator().manual_seed(2)
    return random_alignment(model.spec.restrict(["c0"]), model.blocks, rng, condition=condition)


@pytest.mark.parametrize("left", FUSED)
def test_a_near_twin_of_a_narrow_map_is_told(left: str, toy: ToyMaker, tmp_path: Path) -> None:
    """A basis that acts on one side only. Fingerprints see no maps of streams that have no anchors."""
    first = toy("segformer")
    near = near_twin(first, fused, left, tmp_path / "near")
    assert relative(outputs(near), first.reference) > 1e-3
    assert isomerge.verify(first.folder, near)["same"] is False


@pytest.mark.parametrize("anchor", more("first", "none"))
def test_a_merge_does_not_know_the_basis_of_a_narrow_map(anchor: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Of two unrelated models, one of them in another basis, the merge is the same function."""
    first, other = toy("segformer"), toy("segformer", 5)
    model = recognise(other.folder)
    run_apply(fused(model, 20.0), model, Output(tmp_path / "twin"))
    for name, source in (("one", other.folder), ("two", tmp_path / "twin")):
        isomerge.merge([first.folder, source], out=tmp_path / name, anchor=anchor)
    assert relative(outputs(tmp_path / "two"), outputs(tmp_path / "one")) < 1e-6


def test_fine_tunes_keep_their_latents(toy: ToyMaker, tmp_path: Path) -> None:
    """Where both have one basis no latent turns."""
    model = toy("deepseek_v3")
    rng = torch.Generator().manual_seed(5)
    tuned = {n: t + 0.02 * t.std() * torch.randn(t.shape, generator=rng, dtype=t.dtype) for n, t in
             tensors(model.folder).items() if t.is_floating_point() and t.numel() > 1}  # fmt: skip
    shutil.copytree(model.folder, tmp_path / "tuned")
    overwrite(tmp_path / "tuned", tuned)
    isomerge.align(tmp_path / "tuned", onto=model.folder, out=tmp_path / "aligned")
    g = Alignment.load(tmp_path / "aligned" / "alignment.safetensors", model.spec.turning_latents())
    assert len(g) > 0
    assert not {"lat", "qlat"} & g.moved().keys()


def test_unrelated_models_come_nearer(toy: ToyMaker, tmp_path: Path) -> None:
    """Rotations reach farther than leaving the latent where it is, and what is written is the same function."""
    model, other = toy("deepseek_v3"), toy("deepseek_v3", 5)
    still = ",".join(n for n in model.spec.spaces if n not in {*model.spec.residual_names, *model.spec.latents})
    _, without = isomerge.align(other.folder, onto=model.folder, spaces=still)
    _, report = isomerge.align(other.folder, onto=model.folder, out=tmp_path / "aligned")
    assert report["distance"]["after"] < 0.999 * without["distance"]["after"]
    assert relative(outputs(tmp_path / "aligned"), other.reference) < other.tolerance
    g = Alignment.load(tmp_path / "aligned" / "alignment.safetensors", recognise(other.folder).spec)
    assert {"lat", "lg", "qlat"} <= g.moved().keys()


@pytest.mark.parametrize("how", [{"anchor": "none"}, {"anchor": "none", "spaces": "all"}, {"spaces": "all"}])
def test_many_turned_twins_merge_into_themselves(how: dict[str, str], toy: ToyMaker, tmp_path: Path) -> None:
    """Three points of one orbit, whatever they are merged in the coordinates of."""
    model = toy("deepseek_v3")
    twins = [turned(model, tmp_path / str(seed), seed) for seed in (1, 2)]
    isomerge.merge([model.folder, *twins], out=tmp_path / "merged", **how)
    assert relative(outputs(tmp_path / "merged"), model.reference) < 1e3 * model.tolerance


def test_a_gain_of_zero_hides_nothing(toy: ToyMaker, tmp_path: Path) -> None:
    """What a gain of zero multiplies no output shows: other numbers there are the same function, and such a model is
    aligned."""
    model = toy("deepseek_v3")
    weights = tensors(model.folder)
    gain = next(n for n in weights if "layers.0" in n and "kv_a_layernorm" in n)
    up = gain.replace("kv_a_layernorm", "kv_b_proj")
    zero = weights[gain].clone()
    zero[1] = 0
    other = weights[up].clone()
    other[:, 1] += 1
    for name, changed in (("a", {gain: zero}), ("b", {gain: zero, up: other})):
        shutil.copytree(model.folder, tmp_path / name)
        overwrite(tmp_path / name, weights | changed)
    assert isomerge.verify(tmp_path / "a", tmp_path / "b")["same"] is True
    wanted = outputs(tmp_path / "b")
    isomerge.align(tmp_path / "b", onto=model.folder, out=tmp_path / "aligned")
    assert relative(outputs(tmp_path / "aligned"), wanted) < model.tolerance


def test_the_dimension_by_formula(toy: ToyMaker) -> None:
    """The rotations of both latents count once in every layer."""
    model = recognise(toy("deepseek_v3").folder)
    largest = model.spec.turning_latents()
    rotations = sum(n * (n - 1) // 2 for n in (model.spec.sizes[latent] for latent in largest.turned_latents))
    inside = {
        key: prod(largest.sizes[i] for i in largest.batch(space)) * space.group.dimension(largest.sizes[space.name])
        for block in model.blocks
        for key, space in elements_of(model.spec, block).items()
        if not space.residual
    }
    gains = sum(d for key, d in inside.items() if key.partition("[")[0] in largest.gains)
    layers = sum("kv_a_layernorm" in block.key for block in model.blocks)
    found = whole_group(model)
    assert (layers, rotations) == (2, 244)
    assert found["spaces"] == sum(inside.values()) - gains + layers * rotations


def test_a_basis_that_brings_a_narrow_map_farther_is_left_out(toy: ToyMaker) -> None:
    """And kept where it brings it nearer; what acts elsewhere stays in both."""
    model = toy("segformer")
    blocks = {block: t.clone() for block, t in model.fresh().items()}
    found = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1), ["c0", "ff3"])
    assert {key.partition("[")[0] for key in found} == {"c0", "ff3"}
    moved = found.applied(blocks)
    plan = SimpleNamespace(
        selection=SimpleNamespace(spec=model.spec), units=[SimpleNamespace(blocks=tuple(model.blocks))]
    )
    for anchor, kept in ((blocks, found.keys() - {"c0"}), (moved, found.keys())):
        solver = SimpleNamespace(plan=plan, anchor=anchor, source=blocks, load=lambda model, unit: dict(model))
        assert without_stretching(cast(PairSolver, solver), found).keys() == kept
