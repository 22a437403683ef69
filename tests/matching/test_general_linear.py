"""General linear matching: monotone, stationary, the same optimum from several starts, never worse than its
parts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depth import EVERY, more
from isomerge.evidence.law import random_alignment
from isomerge.matching.distances import distance
from isomerge.matching.general_linear_orbit import (
    Sides,
    balanced,
    descend,
    linear_optimum,
    rank_deficient,
    sequential,
    squared_distance,
)
from isomerge.matching.joint import joint_optimum
from isomerge.matching.local import move_unit
from isomerge.matching.refine import refine
from isomerge.matching.rescale import quartic_scale
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.groups import GROUPS
from matching.drawn import draw, moved, small_spec

Heads = tuple[Tensor, Tensor, Tensor, Tensor]
SEEDS = st.integers(0, 2**20)


def heads(seed: int, batch: int, n: int, d: int, *, noise: float | None, condition: float = 1.0) -> Heads:
    """x1, y1 (moved), x2, y2 (anchor) [batch, n, d]: unrelated, or noisy copies under a hidden gauge."""
    rng = torch.Generator().manual_seed(seed)
    x2, y2, u, v = (torch.randn(batch, n, d, generator=rng, dtype=torch.float64) for _ in range(4))
    g = GROUPS["GL"].sample((batch,), n, rng, condition)
    x, y = (u, v) if noise is None else (x2 + noise * u, y2 + noise * v)
    return g @ x, torch.linalg.inv(g).mT @ y, x2, y2


def sides(parts: Heads) -> Sides:
    """The Grams of heads."""
    x1, y1, x2, y2 = parts
    return Sides(x2 @ x1.mT, y2 @ y1.mT, x1 @ x1.mT, y1 @ y1.mT, x2 @ x2.mT, y2 @ y2.mT)


def reached(parts: Heads, element: Tensor) -> Tensor:
    """The squared distance from the heads themselves."""
    x1, y1, x2, y2 = parts
    gaps = (element @ x1 - x2, torch.linalg.inv(element).mT @ y1 - y2)
    return sum(g.square().sum((-2, -1)) for g in gaps)


@settings(max_examples=15)
@given(SEEDS, st.integers(1, 5), st.sampled_from([1.0, 10.0, 100.0]), st.none() | st.floats(0, 1))
def test_every_step_goes_down(seed: int, n: int, condition: float, noise: float | None) -> None:
    """Step by step, from far away; and the value is the distance."""
    parts = heads(seed, 3, n, n + 3, noise=noise, condition=condition)
    here = sides(parts)
    element = GROUPS["GL"].sample((3,), n, torch.Generator().manual_seed(seed + 1), 10.0)
    before = squared_distance(here, element)
    for _ in range(12):
        step = descend(here, element, 0.0, 1)
        assert bool((step.value <= before).all())
        element, before = step.element, step.value
        assert torch.allclose(reached(parts, element), before, rtol=1e-9, atol=float(1e-12 * here.size().max()))


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 5), st.sampled_from([1.0, 10.0, 100.0]), st.none() | st.floats(0.01, 1))
def test_it_ends_where_the_gradient_is_zero(seed: int, n: int, condition: float, noise: float | None) -> None:
    """Judged by autograd on the distance itself, in the group's own directions."""
    parts = heads(seed, 3, n, n + 3, noise=noise, condition=condition)
    found = linear_optimum(sides(parts))
    assert bool(found.settled.all())
    xi = torch.zeros(3, n, n, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(reached(parts, torch.linalg.matrix_exp(xi) @ found.element).sum(), xi)
    size = sides(parts).size()[:, None, None]
    assert float((slope / size).abs().max()) < 2e-5
    # a minimum, not a saddle: no small turn in any of 30 directions goes down by more than rounding
    for k in range(30):
        nudge = torch.randn(3, n, n, generator=torch.Generator().manual_seed(k), dtype=torch.float64) * 1e-3
        assert bool((reached(parts, torch.linalg.matrix_exp(nudge) @ found.element) >= found.value - 1e-8 * size[:, 0, 0]).all())  # fmt: skip


@pytest.mark.parametrize("condition", [1.0, 3.0, 10.0, 30.0, 100.0])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_one_optimum_from_several_starts(condition: float, noise: float) -> None:
    """Related heads under a hidden gauge: the plain start, the balanced one and the gauge's own inverse agree."""
    parts = heads(7, 6, 8, 24, noise=noise, condition=condition)
    here = sides(parts)
    g = GROUPS["GL"].sample((6,), 8, _after_noise(7, 6, 8, 24), condition)
    starts = [sequential(here), balanced(here), torch.linalg.inv(g)]
    runs = [descend(here, start, 1e-10, 100) for start in starts]
    assert all(run.steps <= 25 for run in runs)
    for run in runs[1:]:
        assert torch.allclose(run.value, runs[0].value, rtol=1e-9)
        assert torch.allclose(run.element, runs[0].element, atol=1e-4 * float(runs[0].element.abs().max()))


def _after_noise(seed: int, batch: int, n: int, d: int) -> torch.Generator:
    """The generator of `heads` where it draws the gauge."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(4):
        torch.randn(batch, n, d, generator=rng, dtype=torch.float64)
    return rng


def test_hidden_gauges_do_not_matter() -> None:
    """With 2 % noise the relative distance stays at the noise for conditions to 100, where a rotation is far
    off."""
    relative, rotated = [], []
    for condition in (1.0, 3.0, 10.0, 100.0):
        parts = heads(3, 8, 16, 64, noise=0.02, condition=condition)
        norm = (parts[2].square() + parts[3].square()).sum((-2, -1))
        relative.append(float((linear_optimum(sides(parts)).value / norm).sqrt().mean()))
        turn = GROUPS["O"].solve(parts[2] @ parts[0].mT + parts[3] @ parts[1].mT)[0]
        rotated.append(float((reached(parts, turn) / norm).sqrt().mean()))
    assert max(relative) < 0.0201
    assert max(relative) - min(relative) < 1e-3
    assert rotated[0] < 0.03
    assert rotated[3] > 1.5


def lbfgs(parts: Heads, start: Tensor) -> float:
    """A descent by torch's own LBFGS over the entries of one element."""
    element = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([element], max_iter=400, tolerance_grad=1e-11, tolerance_change=1e-14, line_search_fn="strong_wolfe")  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = reached(parts, element).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return float(reached(parts, element.detach()).sum())


@pytest.mark.parametrize("seed", range(4 if EVERY else 1))
@pytest.mark.parametrize("n", [2, 3])
def test_against_many_descents(n: int, seed: int) -> None:
    """Related heads: no LBFGS from 16 starts in both components of the group is lower, and the best is as low."""
    parts = heads(seed, 1, n, n + 4, noise=0.2, condition=9.0)
    found = float(linear_optimum(sides(parts)).value)
    rng = torch.Generator().manual_seed(seed)
    starts = [GROUPS["GL"].sample((1,), n, rng, 9.0) for _ in range(16)]
    best = min(lbfgs(parts, start) for start in starts)
    assert found <= best * (1 + 1e-7)
    assert found == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_unrelated_heads_are_at_a_local_optimum(seed: int) -> None:
    """Where the optimum need not be global, another method started there finds nothing lower."""
    parts = heads(seed, 1, 3, 7, noise=None)
    found = linear_optimum(sides(parts))
    assert lbfgs(parts, found.element) >= float(found.value) * (1 - 1e-8)


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 5), st.sampled_from([1.0, 10.0, 100.0]), st.none() | st.floats(0, 1))
def test_never_worse_than_rotation_and_factor(seed: int, n: int, condition: float, noise: float | None) -> None:
    """Neither than one after the other, nor than the balanced map, and below the joint optimum when started
    there."""
    parts = heads(seed, 3, n, n + 3, noise=noise, condition=condition)
    here = sides(parts)
    value, rounding = linear_optimum(here).value, 1e-13 * here.size()
    assert bool((value <= reached(parts, sequential(here)) + rounding).all())
    assert bool((value <= reached(parts, balanced(here)) + rounding).all())
    alpha, beta = (t.square().sum((-2, -1)) for t in parts[:2])
    joint = joint_optimum(GROUPS["O"], alpha, beta, here.plus, here.minus)
    start = joint.element * joint.scale[:, None, None]
    assert bool((linear_optimum(here, [start]).value <= reached(parts, start) + rounding).all())


@settings(max_examples=20)
@given(SEEDS, st.none() | st.floats(0, 1))
def test_heads_of_size_one_are_the_quartic(seed: int, noise: float | None) -> None:
    """GL(1) is any factor but zero, and its optimum is global."""
    parts = heads(seed, 4, 1, 3, noise=noise, condition=1.0)
    here = sides(parts)
    flat = [getattr(here, name)[:, 0, 0] for name in ("moved_plus", "moved_minus", "plus", "minus")]
    best = quartic_scale(*flat)
    assert torch.allclose(linear_optimum(here).value, reached(parts, best[:, None, None]), rtol=1e-9)


def test_rank_deficient_heads_keep_a_start() -> None:
    """Where no optimum need exist nothing runs away; the other heads are solved as ever."""
    parts = heads(0, 4, 5, 9, noise=0.3, condition=10.0)
    whole = linear_optimum(sides(parts))
    parts[0][1, 0] = parts[0][1, 2]  # two equal rows
    parts[1][3] = 0
    here = sides(parts)
    found = linear_optimum(here)
    assert rank_deficient(here).tolist() == [False, True, False, True]
    assert bool(found.element.isfinite().all())
    for k in (1, 3):
        best = min((s[k] for s in (sequential(here), balanced(here))), key=lambda g, k=k: float(reached(tuple(t[k] for t in parts), g)))  # fmt: skip
        assert torch.equal(found.element[k], best)
    for k in (0, 2):
        assert float(found.value[k]) == pytest.approx(float(whole.value[k]), rel=1e-9)


@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_unrelated_heads_need_few_steps(condition: float) -> None:
    """Large residuals bend the problem: Newton's second derivative settles it where Gauss-Newton takes hundreds."""
    found = linear_optimum(sides(heads(5, 8, 12, 40, noise=None, condition=condition)))
    assert bool(found.settled.all())
    assert found.steps <= 30


def test_batches_of_any_shape() -> None:
    """Two batch dimensions are one."""
    here = sides(heads(2, 6, 3, 8, noise=None))
    square = Sides(*(getattr(here, name).reshape(2, 3, 3, 3) for name in Sides.__dataclass_fields__))
    found, flat = linear_optimum(square), linear_optimum(here)
    assert found.element.shape == (2, 3, 3, 3)
    assert torch.allclose(found.value.flatten(), flat.value, rtol=1e-9)


# --------------------------------------------------------------- in the guarded path

PLAIN = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 7}


@settings(max_examples=15)
@given(SEEDS, st.floats(0, 2))
def test_refine_solves_general_linear_spaces(seed: int, spread: float) -> None:
    """The distance falls, to no more than where a rotation and then a factor lead."""
    spec = small_spec("bert", **PLAIN).restrict(["qk", "ov"])
    a, b = (draw(spec, s, "attention.self", "attention.output.dense", spread=spread) for s in (seed, seed + 1))
    ours, theirs = ({k: t.clone() for k, t in b.items()} for _ in range(2))
    g = refine(spec, a, ours)
    refine(spec, a, theirs, linear=False)
    assert distance(a, ours) < distance(a, theirs) * (1 - 1e-4)
    assert distance(a, ours) < distance(a, b)
    assert distance(ours, moved(g, b)) <= 1e-16 * distance(a, b)
    assert {key: tuple(e.shape) for key, e in g.items()} == {"qk[0]": (3, 4, 4), "ov[0]": (3, 4, 4)}


@pytest.mark.parametrize("noise", [0.1, None])
def test_the_guarded_path_uses_it(noise: float | None) -> None:
    """No small linear map of any head brings what `move_unit` gives any closer."""
    selection = select_spaces(small_spec("bert", **PLAIN), "qk,ov")
    a, other = (draw(selection.spec, s, "attention.self", "attention.output.dense") for s in (0, 1))
    b = other if noise is None else {k: t + noise * other[k] for k, t in a.items()}
    b = moved(random_alignment(selection.spec, list(a), torch.Generator().manual_seed(3), condition=20.0), b)
    found = moved(move_unit(selection, a, b, guard=True).alignment, b)
    assert distance(a, found) < distance(a, b) * 0.7
    eye = torch.eye(4, dtype=torch.float64)
    for seed in range(20):
        drawn = random_alignment(selection.spec, list(a), torch.Generator().manual_seed(seed), condition=2.0)
        small = {key: torch.linalg.matrix_exp(1e-3 * (g - eye)) for key, g in drawn.items()}
        assert set(small) == {"qk[0]", "ov[0]"}
        assert distance(a, moved(Alignment(selection.spec, small), found)) >= distance(a, found) * (1 - 1e-9)


def test_a_key_bias_that_softmax_ignores_holds_no_map_back() -> None:
    """The map of queries and keys is that of heads without a key bias, and the bias is then the anchor's."""
    spec = small_spec("bert", **PLAIN)
    whole, bare = spec.restrict(["qk", "kb"]), spec.restrict(["qk"])
    a, b = (draw(whole, s, "attention.self.query", "attention.self.key") for s in (0, 1))
    key = next(block for block in a if block.line.name.endswith("key.bias"))
    ours = {k: t.clone() for k, t in b.items()}
    g = refine(whole, a, ours)
    without = [{k: t.clone() for k, t in blocks.items() if k != key} for blocks in (a, b)]
    assert torch.allclose(g["qk[0]"], refine(bare, *without)["qk[0]"], rtol=1e-9, atol=1e-12)
    assert torch.allclose(ours[key], a[key], rtol=0, atol=1e-12)
    assert distance(ours, moved(g, b)) <= 1e-16 * distance(a, b)


@pytest.mark.parametrize("n", [2, 8, *more(3)])
def test_both_components_are_reached(n: int) -> None:
    """Of unrelated heads no start of twenty, from both components, leads lower; from one component some do."""
    here = sides(heads(7 * n, 60, n, 24, noise=None))
    found = linear_optimum(here)
    rng, lowest = torch.Generator().manual_seed(1), found.value.clone()
    signs = set()
    for _ in range(20):
        start = GROUPS["GL"].sample((60,), n, rng)
        signs |= set(torch.linalg.det(start).sign().tolist())
        lowest = torch.minimum(lowest, descend(here, start, 1e-10, 300).value)
    assert signs == {-1.0, 1.0}
    assert bool((found.value <= lowest * (1 + 1e-6)).all())
    one_sided = linear_optimum(here, [sequential(here), balanced(here)]).value
    assert bool((found.value <= one_sided * (1 + 1e-12)).all())
    assert bool((found.value < one_sided * (1 - 1e-3)).any())
