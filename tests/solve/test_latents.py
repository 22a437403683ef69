"""Latents between a norm and what reads it (DeepSeek's): turned once the norm's gains are folded into their readers.

Twins and near-twins: `symmetry.test_statements`.
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
from isomerge.evidence.inspection import whole_group
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.solve.pairs.in_place import without_stretching
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import elements_of
from symmetry.twins import turned
from toys import Toy, outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]


@pytest.mark.parametrize("anchor", more("first", "none"))
def test_a_merge_does_not_know_the_basis_of_a_narrow_map(anchor: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Of two unrelated models, one of them in another basis, the merge is the same function."""
    first, other = toy("segformer"), toy("segformer", 5)
    model = recognise(other.folder)
    rng = torch.Generator().manual_seed(2)
    moves = random_alignment(model.spec.restrict(["c0"]), model.blocks, rng, condition=20.0)
    run_apply(moves, model, Output(tmp_path / "twin"))
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
    twins = [
        turned(streams=False, latents=True, gains=True, seed=seed)(model, tmp_path / str(seed)) for seed in (1, 2)
    ]
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
