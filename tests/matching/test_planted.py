"""Planted recovery: a copy of every toy, moved by a random element of every block-local space, comes home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from depth import more
from isomerge.evidence.law import random_alignment
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import distance
from isomerge.matching.local import move_unit, vote
from isomerge.matching.selection import Selection, select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import Unit, plan_units, voted
from matching.drawn import Blocks, moved
from toys import FEW, STREAMS_ALONE, Toy

ToyMaker = Callable[..., Toy]


def part(blocks: Blocks, unit: Unit) -> Blocks:
    """One unit's blocks, copied."""
    return {block: blocks[block].clone() for block in unit.blocks}


def votes_of(selection: Selection, units: list[Unit], anchor: Blocks, source: Blocks) -> dict[str, torch.Tensor]:
    """The stack-wide elements: the units' profits, measured in canonical gauges, added up."""
    spec, found = selection.spec, {}
    for name in sorted(voted(spec)):
        total = torch.zeros(())
        for unit in units:
            if name in unit.votes:
                a, b = part(anchor, unit), part(source, unit)
                canonical_gauge(spec, a)
                canonical_gauge(spec, b)
                total = total + vote(spec, a, b, name)
        found[name] = spec.spaces[name].group.solve(total)[0]
    return found


def align(selection: Selection, anchor: Blocks, source: Blocks, *, guard: bool) -> tuple[Alignment, list[str]]:
    """Match all units; the whole element, and the dead blocks."""
    units = plan_units(selection.spec, list(anchor))
    votes = votes_of(selection, units, anchor, source)
    elements: dict[str, torch.Tensor] = {}
    dead: list[str] = []
    for unit in units:
        own = {name: g for name, g in votes.items() if name in unit.votes}
        matched = move_unit(selection, part(anchor, unit), part(source, unit), own, guard=guard)
        elements |= matched.alignment.elements
        dead += matched.dead
    return Alignment(selection.spec, elements), dead


@pytest.mark.parametrize("guard", [False, True], ids=["canonical", "guarded"])
@pytest.mark.parametrize("name", [n for n in FEW if n not in STREAMS_ALONE])
def test_moved_copies_come_home(name: str, guard: bool, toy: ToyMaker) -> None:
    """After alignment a moved copy is as far as rounding, in every unit together; far elements are the harder
    ones."""
    model = toy(name)
    selection = select_spaces(model.spec, "default")
    selection = replace(selection, spec=selection.unfolded)  # turned latents: `tests/solve/test_latents.py`
    anchor, rng = model.fresh(), torch.Generator().manual_seed(1)
    g = random_alignment(selection.spec, model.blocks, rng, condition=100.0)
    source = moved(g, anchor)
    before = distance(anchor, source)
    assert before > 1
    found, dead = align(selection, anchor, source, guard=guard)
    assert not dead
    assert distance(anchor, moved(found, source)) <= (1e-6) ** 2 * before


@pytest.mark.parametrize("guard", [False, True], ids=["canonical", "guarded"])
@pytest.mark.parametrize("name", ["bert", "mixtral", *more("gpt2", "qwen2", "t5-gated")])
def test_unrelated_toys(name: str, guard: bool, toy: ToyMaker) -> None:
    """Unrelated weights: the guard never moves away, and the canonical answer does not depend on the gauge."""
    selection = select_spaces(toy(name).spec, "default")
    anchor, other = toy(name).fresh(), dict(zip(toy(name).blocks, toy(name, 1).fresh().values(), strict=True))
    spec = selection.spec
    if not guard:  # constants stay where trading them is not worth it, so that the answer depends on where they are
        spec = spec.without({shift.name for shift in spec.shifts if shift.trades})
    g = random_alignment(spec, toy(name).blocks, torch.Generator().manual_seed(2), condition=9.0)
    one, two = (align(selection, anchor, source, guard=guard)[0] for source in (other, moved(g, other)))
    if guard:
        assert distance(anchor, moved(one, other)) < distance(anchor, other) * (1 - 1e-3)
        return
    first, second = moved(one, other), moved(two, moved(g, other))
    assert distance(first, second) < 1e-12 * distance(anchor, first)


@pytest.mark.parametrize("name", ["bert", "llama", "mixtral"])
def test_a_copy_stays(name: str, toy: ToyMaker) -> None:
    """The guard leaves an identical model exactly alone."""
    selection = select_spaces(toy(name).spec, "default")
    found, _ = align(selection, toy(name).fresh(), toy(name).fresh(), guard=True)
    assert distance(moved(found, toy(name).fresh()), toy(name).fresh()) == 0
