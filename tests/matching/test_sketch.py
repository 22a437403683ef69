"""Neurons matched by a sketch: whatever is proven is the optimum, however the points are made to fool it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from isomerge.matching import experts, points, sketch
from isomerge.matching.gram import paired_leaves
from isomerge.matching.local import move_unit
from isomerge.matching.nested import NestedSolver
from isomerge.matching.points import Points
from isomerge.matching.selection import select_spaces
from isomerge.matching.sketch import nearest, solve_neurons
from isomerge.models.recognised import recognise
from isomerge.symmetry.units import plan_units
from solve.disguises import disguise, perturb, single


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few directions and no least size, so that small cases go the whole way."""
    monkeypatch.setattr(sketch, "SMALLEST", 2)
    monkeypatch.setattr(sketch, "DIRECTIONS", 8)
    monkeypatch.setattr(sketch, "STEP", 4)
    monkeypatch.setattr(sketch, "ROWS", 5)


def costs(anchor: Points, source: Points) -> torch.Tensor:
    """All squared distances [anchor, source], least over signs, in float64."""
    total = torch.zeros(len(anchor.parts[0]), len(source.parts[0]), dtype=torch.float64)
    if anchor.fixed:
        x, y = (torch.cat(side.fixed, 1).double() for side in (anchor, source))
        total += torch.cdist(x, y).square()
    if anchor.signed:
        x, y = (torch.cat(side.signed, 1).double() for side in (anchor, source))
        total += torch.minimum(torch.cdist(x, y), torch.cdist(x, -y)).square()
    return total


def least(cost: torch.Tensor) -> float:
    """The cost of the optimal assignment."""
    rows, columns = linear_sum_assignment(cost.numpy())
    return float(cost[rows, columns].sum())


def drawn(seed: int, n: int, noise: float, kinds: tuple[bool, bool], twist: str) -> tuple[Points, Points]:
    """Points, and the same in another order with other signs and noise, made awkward."""
    rng = torch.Generator().manual_seed(seed)
    p = torch.randperm(n, generator=rng)
    parts: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = []
    for signed, wanted in zip((False, True), kinds, strict=True):
        if not wanted:
            parts.append(((), ()))
            continue
        x = torch.randn(n, 40, generator=rng)
        if twist == "blind":  # two points that a sketch of few directions cannot tell apart
            directions = points.in_groups(torch.eye(40), 4)
            step = torch.randn(40, generator=rng)
            x[1] = x[0] + step - directions @ (directions.mT @ step)
        if twist == "twice":
            x[1] = x[0]
        if twist == "sizes":
            x *= torch.logspace(-3, 3, n)[:, None]
        if twist == "dead":
            x[: n // 2] = 0
        flip = torch.randint(0, 2, (n, 1), generator=rng) * 2.0 - 1 if signed else 1.0
        y = flip * x[p] + noise * torch.randn(n, 40, generator=rng)
        if n % 2:  # as they lie in weights: some in rows, some in columns, a bias
            x, y = ((t[:, :24], t[:, 24:39].mT.contiguous().mT, t[:, 39:]) for t in (x, y))
        parts.append((tuple(x) if n % 2 else (x,), tuple(y) if n % 2 else (y,)))
    return tuple(Points(parts[0][side], parts[1][side]) for side in (0, 1))  # type: ignore[return-value]


@given(
    st.integers(0, 10_000),
    st.integers(2, 24),
    st.sampled_from([0.0, 0.05, 0.3, 1.0, 3.0]),
    st.sampled_from([(True, False), (False, True), (True, True)]),
    st.sampled_from(["", "", "blind", "twice", "sizes", "dead"]),
)
@settings(deadline=None, max_examples=200)
def test_what_is_proven_is_optimal(seed: int, n: int, noise: float, kinds: tuple[bool, bool], twist: str) -> None:
    """Against the assignment over all pairs; unrelated, equal, dead and blinding points among them."""
    assert sketch.DIRECTIONS == 8
    anchor, source = drawn(seed, n, noise, kinds, twist)
    found = nearest(anchor, source)
    if twist in ("twice", "dead") and n > 3 and noise == 0:
        assert found is None  # equal points can stand in either order: nothing is proven
    if found is None:
        return
    p, sign = found
    cost = costs(anchor, source)
    assert sorted(p.tolist()) == list(range(n))
    assert float(cost[torch.arange(n), p].sum()) <= least(cost) * (1 + 1e-6) + 1e-6
    if anchor.signed:
        x, y = (torch.cat(side.signed, 1) for side in (anchor, source))
        moved = (sign.unsqueeze(1) * y)[p]
        assert ((moved - x).square().sum(1) <= (moved + x).square().sum(1) + 1e-4).all()


@pytest.mark.parametrize("kinds", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_related_points_are_proven(kinds: tuple[bool, bool], noise: float) -> None:
    """Twins and near ones are found; strangers are not, nor is anything proven from a sample that does not look
    related."""
    anchor, source = drawn(1, 24, noise, kinds, "")
    assert nearest(anchor, source) is not None
    stranger = drawn(2, 24, noise, kinds, "")[1]
    assert nearest(anchor, stranger) is None


def test_a_proof_that_ignores_exact_distances_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that trusts the sketch: it proves what is not optimal, so that the property above can fail."""
    monkeypatch.setattr(
        sketch, "exact_distances", lambda one, two, pairs: (torch.zeros(len(pairs)), torch.ones(len(pairs)))
    )
    monkeypatch.setattr(sketch, "telling_sketch", lambda one, two: sketch.Sketch.of(one, two, 4))
    wrong = 0
    for seed in range(60):
        anchor, source = drawn(seed, 5, 3.0, (True, False), "")
        found = nearest(anchor, source)
        if found is not None:
            cost = costs(anchor, source)
            wrong += float(cost[torch.arange(5), found[0]].sum()) > least(cost) * 1.001
    assert wrong


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5-relu", "bert"])
def test_units_come_out_as_without_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neurons of related models, with and without the shortcut: the same elements; and the shortcut is taken."""
    a = recognise(single(name, tmp_path / "a"))
    b = recognise(disguise(name, perturb(tmp_path / "a", tmp_path / "near", 0.05), tmp_path / "b", 3))
    selection = select_spaces(a.spec, "default")
    taken = []

    def counted(solver: NestedSolver, leaves: list) -> object:
        found = solve_neurons(solver, leaves)
        taken.append(found is not None)
        return found

    for unit in plan_units(selection.spec, a.blocks):
        tensors = [{block: m.assemble(block, torch.float64) for block in unit.blocks} for m in (a, b)]
        found = []
        for shortcut in (counted, lambda *given: None):
            monkeypatch.setattr(experts, "solve_neurons", shortcut)
            found.append(move_unit(selection, *tensors, guard=False).alignment)
        assert found[0].elements.keys() == found[1].elements.keys()
        for key, g in found[0].items():
            assert torch.allclose(g.double(), found[1].elements[key].double(), atol=1e-9), key
    assert any(taken)


def test_what_else_acts_is_left_to_the_general_solver(tmp_path: Path) -> None:
    """Heads with rotations inside are no points."""
    a = recognise(single("gpt2", tmp_path / "a"))
    selection = select_spaces(a.spec, "default")
    for unit in plan_units(selection.spec, a.blocks):
        tensors = {block: a.assemble(block, torch.float64) for block in unit.blocks}
        names = {key.partition("[")[0] for key in unit.elements}
        leaves = list(paired_leaves(selection.spec, tensors, tensors))
        if leaves and "ff" not in names:
            assert solve_neurons(NestedSolver(selection.spec), leaves) is None
