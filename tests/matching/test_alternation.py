"""Bases that meet in one tensor (heads and latents), and experts in groups: both come back, and neither needs all
pairs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.evidence.law import random_alignment
from isomerge.matching import alternation, experts
from isomerge.matching.alternation import trees
from isomerge.matching.distances import distance
from isomerge.matching.local import compact_solution
from isomerge.symmetry.units import plan_units
from solve.disguises import disguise, single
from toys import Toy


def test_the_bases_of_a_unit(toy: Callable[..., Toy]) -> None:
    """Heads, both latents and the rotated pairs meet in DeepSeek's attention; nothing meets in Llama's or in a
    layer of experts."""
    model = toy("deepseek_v3")
    local = model.spec.restrict(model.spec.spaces.keys() - model.spec.residual_names)
    found = [trees(local, unit.blocks) for unit in plan_units(local, model.blocks)]
    wanted = {"h": {"h", "nope", "ov"}, "lat": {"lat", "lg"}, "qlat": {"qlat", "qg"}, "c": {"c"}}
    assert [bases for bases in found if bases] == [wanted, wanted]
    llama = toy("llama")
    spec = llama.spec.restrict(llama.spec.spaces.keys() - llama.spec.residual_names)
    assert not any(trees(spec, unit.blocks) for unit in plan_units(spec, llama.blocks))


def test_turns_never_part(toy: Callable[..., Toy], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unrelated models: with every round more, heads and latents bring the two at least as close; and more than one
    is needed."""
    model, other = toy("deepseek_v3"), toy("deepseek_v3", 5)
    names = ["h", "nope", "ov", "lat", "ls", "qlat", "qs", "c"]
    spec = model.spec.restrict(names)
    rotations = {"nope": "O", "ov": "O"}  # compact groups alone: the distance is the score
    for name, group in rotations.items():
        spec = spec.with_group(name, group)
    blocks, moving = model.fresh(), other.fresh()
    unit = next(u for u in plan_units(spec, model.blocks) if "h[0]" in u.elements)
    for side in (blocks, moving):
        for block in unit.blocks:
            if "_a_" in block.key:
                side[block] *= 0.1  # what a latent has of its own counts for little: the first turn is a guess
    a = {block: blocks[block] for block in unit.blocks}
    reached = []
    for rounds in (1, 2, 5, 30):
        monkeypatch.setattr(alternation, "ROUNDS", rounds)
        b = {block: moving[block].clone() for block in unit.blocks}
        compact_solution(spec.restrict([*spec.spaces.keys() - {"c"}]), a, b, {}).act(b)
        reached.append(distance(a, b))
    assert all(later <= before * (1 + 1e-9) for before, later in pairwise(reached))
    assert reached[-1] < reached[0] * (1 - 1e-4)
    assert reached[-1] < distance(a, {block: moving[block] for block in unit.blocks})


def test_groups_of_experts_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin comes back where no cross-Gram fits: groups by their profiles, experts by theirs, then neurons."""
    a = single("deepseek_v3", tmp_path / "a")
    moved = disguise("deepseek_v3", a, tmp_path / "moved", 3)
    monkeypatch.setattr(experts, "LARGEST", 0)
    monkeypatch.setattr(experts, "BUDGET", 0)
    _, report = isomerge.align(moved, onto=a)
    assert report["distance"]["before"] > 1
    assert report["distance"]["after"] <= 1e-4 * report["distance"]["before"]


@pytest.mark.parametrize("budget", [0, 1e12])
def test_what_meets_inside_a_block_takes_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    """Channels, states and steps of time inside the heads of Zamba's mixers: a twin comes back where their cross-Gram
    does not fit, whether pairs of heads are scored by profiles or by what they reach."""
    a = single("zamba", tmp_path / "a")
    moved = disguise("zamba", a, tmp_path / "moved", 3)
    turned = []
    take_turns = experts._in_turns
    monkeypatch.setattr(experts, "_in_turns", lambda *args: turned.append(1) or take_turns(*args))
    monkeypatch.setattr(experts, "CROWD", 0)
    monkeypatch.setattr(experts, "BUDGET", budget)
    _, report = isomerge.align(moved, onto=a)
    assert turned
    assert report["distance"]["before"] > 1
    assert report["distance"]["after"] <= 1e-4 * report["distance"]["before"]


def test_a_number_that_factors(toy: Callable[..., Toy]) -> None:
    """Experts stored one by one by one number are two axes: groups (slow) and experts (fast)."""
    model = toy("deepseek_v3")
    block = next(b for b in model.blocks if b.key == "layers.1.mlp.experts.0.up_proj.weight")
    assert block.lead == (4, 3)
    assert block.canonical[5] == "layers.1.mlp.experts.5.up_proj.weight"
    g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1), ["eg", "e"])
    assert g["eg[1]"].shape == (4,)
    assert g["e[1]"].shape == (4, 3)
    blocks = model.fresh()
    before = blocks[block].clone()
    g.act(blocks)
    groups, inside = g["eg[1]"], g["e[1]"]
    for at in range(4):
        source = int(groups[at])
        assert torch.equal(blocks[block][at], before[source][inside[source]])
