"""Rotation and factor together: global against grids and brute force, certified, never worse than one after the
other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from isomerge.matching.certified import certified_scale
from isomerge.matching.distances import distance
from isomerge.matching.joint import JointOptimum, joint_optimum
from isomerge.matching.local import move_unit
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.units import plan_units
from matching.drawn import Blocks, draw, moved, small_spec

Problem = tuple[Tensor, Tensor, Tensor, Tensor]


def problem(seed: int, batch: int, n: int, *, spread: float = 1.0, related: float | None = None) -> Problem:
    """Heads x1, y1 (moved) and x2, y2 (anchor) [batch, n, d]; related ones hide a rotation and a factor."""
    rng = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    x1, y1, x2, y2 = (noise(batch, n, n + 2) * (spread * noise(batch, 1, 1)).exp() for _ in range(4))
    if related is not None:
        turn, factor = GROUPS["O"].sample((batch,), n, rng), (spread * noise(batch, 1, 1)).exp()
        x2 = factor * (turn @ x1) * (1 + related * noise(*x1.shape))
        y2 = (turn @ y1) / factor * (1 + related * noise(*y1.shape))
    return x1, y1, x2, y2


def traces(heads: Problem) -> Problem:
    """alpha, beta, C+, C-."""
    x1, y1, x2, y2 = heads
    return x1.square().sum((-2, -1)), y1.square().sum((-2, -1)), x2 @ x1.mT, y2 @ y1.mT


def solved(heads: Problem) -> JointOptimum:
    """The joint optimum over rotations."""
    return joint_optimum(GROUPS["O"], *traces(heads))


def reached(heads: Problem, element: Tensor, scale: Tensor) -> Tensor:
    """The cost at an element, from the heads themselves, without the anchor's squares."""
    x1, y1, x2, y2 = heads
    a = scale[..., None, None]
    gaps = (a * (element @ x1) - x2, (element @ y1) / a - y2)
    return sum((g.square() - t.square()).sum((-2, -1)) for g, t in zip(gaps, (x2, y2), strict=True))


def along(heads: Problem, logs: Tensor) -> Tensor:
    """The cost of every factor e^s with its best rotation [batch, len(logs)]."""
    alpha, beta, plus, minus = (t[:, None] for t in traces(heads))
    up, down = logs.exp(), (-logs).exp()
    nuclear = torch.linalg.svdvals(up[:, None, None] * plus + down[:, None, None] * minus).sum(-1)
    return alpha * up**2 + beta * down**2 - 2 * nuclear


def size(heads: Problem, found: JointOptimum) -> Tensor:
    """The scale of rounding and of the tolerance."""
    alpha, beta, _, _ = traces(heads)
    return 2 * (alpha * found.scale**2 + beta / found.scale**2) + found.value.abs()


SEEDS = st.integers(0, 2**20)


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 5), st.floats(0, 3), st.none() | st.floats(0, 0.5))
def test_against_a_dense_grid(seed: int, n: int, spread: float, related: float | None) -> None:
    """No factor of a dense grid is better than the value, or lower than the certificate; the value is attained."""
    heads = problem(seed, 3, n, spread=spread, related=related)
    found = solved(heads)
    grid = along(heads, torch.linspace(-14, 14, 2801, dtype=torch.float64) + found.scale.log().mean()).amin(-1)
    rounding = 1e-12 * size(heads, found)
    assert bool((found.value <= grid + rounding).all())
    assert bool((found.gap <= 1e-10 * size(heads, found)).all())
    assert torch.allclose(reached(heads, found.element, found.scale), found.value, rtol=1e-9, atol=1e-9)
    assert GROUPS["O"].contains(found.element)
    assert bool((found.scale > 0).all())


@pytest.mark.parametrize("seed", range(6))
def test_against_brute_force(seed: int) -> None:
    """Over angle, reflection and factor at once, without the nuclear norm: many starts reach no lower."""
    heads = problem(seed, 1, 2)
    x1, y1, x2, y2 = (t[0].numpy() for t in heads)

    def cost(at: np.ndarray, mirror: float) -> float:
        c, s = math.cos(at[0]), math.sin(at[0])
        r = np.array([[c, -s * mirror], [s, c * mirror]])
        a = math.exp(at[1])
        gaps = (a * r @ x1 - x2) ** 2 - x2**2, (r @ y1 / a - y2) ** 2 - y2**2
        return float(sum(g.sum() for g in gaps))

    starts = [(t, s, m) for t in np.linspace(-3, 3, 5) for s in np.linspace(-4, 4, 5) for m in (1.0, -1.0)]
    best = min(float(minimize(cost, [t, s], args=(m,), method="BFGS").fun) for t, s, m in starts)
    assert float(solved(heads).value) == pytest.approx(best, abs=1e-6 * (1 + abs(best)))


@given(SEEDS, st.integers(1, 4))
def test_the_certificate_holds(seed: int, n: int) -> None:
    """No rotation and factor whatever lies below value minus gap."""
    heads = problem(seed, 2, n)
    found = solved(heads)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(50):
        element, s = GROUPS["O"].sample((2,), n, rng), torch.randn(2, generator=rng, dtype=torch.float64)
        assert bool((reached(heads, element, found.scale * s.exp()) >= found.value - found.gap - 1e-9).all())


def one(*values: float) -> list[Tensor]:
    """Traces of a single head of size one."""
    alpha, beta, plus, minus = (torch.tensor([v], dtype=torch.float64) for v in values)
    return [alpha, beta, plus.reshape(1, 1, 1), minus.reshape(1, 1, 1)]


def test_two_global_minima() -> None:
    """n = 1, overlaps 2 and -2: ``2 + 4 y^2 - 8 |y|`` in y = sinh s has its minima at both signs."""
    found = joint_optimum(GROUPS["O"], *one(1.0, 1.0, 2.0, -2.0))
    assert float(found.value) == pytest.approx(-2.0, abs=1e-12)
    assert abs(math.sinh(math.log(float(found.scale)))) == pytest.approx(1.0, abs=1e-6)
    other = float(found.scale) ** -1
    assert other**2 + other**-2 - 2 * abs(2 * other - 2 / other) == pytest.approx(-2.0, abs=1e-9)


def test_of_two_minima_the_lower() -> None:
    """The better of two valleys is taken, whichever side of one it is on."""
    for tilt in (0.01, -0.01):
        found = joint_optimum(GROUPS["O"], *one(1.0, 1.0, 2.0 + tilt, -2.0 + tilt))
        assert (float(found.scale) > 1) == (tilt > 0)
        assert float(found.value) < -2.0 - 0.01


def sequential_cost(alpha: float, beta: float, plus: np.ndarray, minus: np.ndarray) -> float:
    """The paper's two steps: Eq. 10, then every real root of Eq. 12."""
    u, _, vt = np.linalg.svd(plus + minus)
    cp, cm = float((plus * (u @ vt)).sum()), float((minus * (u @ vt)).sum())
    roots = np.roots([alpha, -cp, 0.0, cm, -beta])
    real = [r.real for r in roots if abs(r.imag) < 1e-9 * max(1.0, abs(r)) and r.real != 0]
    return min(alpha * a * a - 2 * a * cp + beta / a**2 - 2 * cm / a for a in real)


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 6), st.floats(0, 2), st.none() | st.floats(0, 0.5))
def test_never_worse_than_one_after_the_other(seed: int, n: int, spread: float, related: float | None) -> None:
    """Over random heads, related or not."""
    heads = problem(seed, 4, n, spread=spread, related=related)
    found = solved(heads)
    for k, (alpha, beta, plus, minus) in enumerate(zip(*traces(heads), strict=True)):
        theirs = sequential_cost(float(alpha), float(beta), plus.numpy(), minus.numpy())
        assert float(found.value[k]) <= theirs + 1e-10 * float(size(heads, found)[k])


def test_it_gains() -> None:
    """Between unrelated heads of unequal sides the joint optimum is lower by more than rounding."""
    heads = problem(0, 20, 6)
    ours = solved(heads).value
    theirs = torch.tensor([sequential_cost(float(a), float(b), p.numpy(), m.numpy()) for a, b, p, m in zip(*traces(heads), strict=True)])  # fmt: skip
    assert float((theirs - ours).max()) > 1e-3 * float(theirs.abs().mean())


@given(SEEDS, st.integers(1, 4), st.floats(-9, 9))
def test_a_hidden_rotation_and_factor_come_back(seed: int, n: int, log: float) -> None:
    """However large the factor."""
    x1, y1, _, _ = problem(seed, 1, n, spread=0.0)
    g = GROUPS["O"].sample((1,), n, torch.Generator().manual_seed(seed))
    heads = (x1, y1, math.exp(log) * (g @ x1), math.exp(-log) * (g @ y1))
    found = solved(heads)
    assert float(found.scale) == pytest.approx(math.exp(log), rel=1e-6)
    assert torch.allclose(found.element, g, atol=1e-6)


def test_batches_are_independent_and_zero_sides_stay() -> None:
    """A batch is its entries; where a side is zero the rotation is Procrustes' and the factor one."""
    heads = problem(5, 4, 3)
    heads[1][2] = 0
    found = solved(heads)
    assert float(found.scale[2]) == 1.0
    assert torch.allclose(found.element[2], GROUPS["O"].solve(heads[2][2] @ heads[0][2].mT)[0])
    for k in (0, 1, 3):
        alone = solved(tuple(t[k : k + 1] for t in heads))
        assert float(alone.value) == pytest.approx(float(found.value[k]), rel=1e-9)
        assert torch.allclose(alone.element[0], found.element[k], atol=1e-5)


@pytest.mark.parametrize("name", ["Sign", "Complex"])
def test_other_groups(name: str) -> None:
    """Signs against all of them; phases against a grid."""
    group, heads = GROUPS[name], problem(1, 3, 2)
    alpha, beta, plus, minus = traces(heads)
    found = joint_optimum(group, alpha, beta, plus, minus)
    logs = torch.linspace(-6, 6, 4001, dtype=torch.float64)[:, None, None, None]
    crosses = logs.exp() * plus + (-logs).exp() * minus
    if name == "Sign":
        signs = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
        score = (crosses.diagonal(dim1=-2, dim2=-1)[..., None, :] * signs).sum(-1).amax(-1)
    else:
        angles = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
        re, im = crosses[..., 0, 0] + crosses[..., 1, 1], crosses[..., 1, 0] - crosses[..., 0, 1]
        score = (re[..., None] * angles.cos() + im[..., None] * angles.sin()).amax(-1)
    grid = (alpha * (2 * logs[..., 0, 0]).exp() + beta * (-2 * logs[..., 0, 0]).exp() - 2 * score).amin(0)
    assert bool((found.value <= grid + 1e-9).all())
    assert torch.allclose(found.value, grid, rtol=1e-3, atol=1e-2)
    assert group.contains(found.element)


def test_groups_without_minus_one_are_refused() -> None:
    """The bound needs a norm."""
    with pytest.raises(ValueError, match="PositiveScale"):
        joint_optimum(GROUPS["PositiveScale"], *one(1.0, 1.0, 2.0, -2.0))


def test_a_loose_tolerance_is_told() -> None:
    """The reported gap is that of the search, and covers what is left."""
    heads = problem(3, 50, 4)
    alpha, beta, plus, minus = traces(heads)
    exact = solved(heads).value

    def nuclear(c: Tensor) -> Tensor:
        return torch.linalg.svdvals(c).sum(-1)

    _, value, gap = certified_scale(alpha, beta, plus, minus, nuclear, tolerance=1e-2)
    assert bool((value - gap <= exact + 1e-9).all())
    assert float(gap.max()) > 1e-6
    assert float((value - exact).max()) > 1e-9


# ------------------------------------------------------------------------- the preset


def aligned(kind: str, preset: str, anchor: Blocks, source: Blocks, guard: bool, **config: int) -> Blocks:
    """The source moved by a preset, unit by unit."""
    selection = select_spaces(small_spec(kind, **config), preset)
    elements: dict[str, Tensor] = {}
    for unit in plan_units(selection.spec, list(anchor)):
        pick = ({block: side[block] for block in unit.blocks} for side in (anchor, source))
        elements |= move_unit(selection, *pick, guard=guard).alignment.elements
    return moved(Alignment(selection.spec, elements), source)


PLAIN = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 7}


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_paper_joint_is_the_joint_optimum_of_every_head(seed: int, guard: bool) -> None:
    """Heads reach the sum of their joint optima; neurons are where the paper puts them."""
    spec = small_spec("bert", **PLAIN)
    a, b = (draw(spec, s, "attention.self", "attention.output.dense.w", "intermediate", spread=0.7) for s in (seed, seed + 9))  # fmt: skip
    ours, theirs = (aligned("bert", p, a, b, guard, **PLAIN) for p in ("paper-joint", "paper"))
    assert distance(a, ours) < distance(a, theirs) - 1e-6

    def heads(blocks: Blocks, name: str) -> Tensor:
        parts = [t for block, t in blocks.items() if name in block.key]
        if name == "output":
            return parts[0].T.reshape(3, 4, -1)
        return torch.cat([t.reshape(3, 4, -1) for t in parts], -1)

    total = 0.0
    for plain, dual in (("query", "key"), ("value", "output")):
        pair = tuple(heads(side, name) for side in (b, a) for name in (plain, dual))
        total += float(solved(pair).value.sum()) + float(sum(t.square().sum() for t in pair[2:]))
    neurons = {block for block in a if "intermediate" in block.key}
    rest = distance({k: a[k] for k in neurons}, {k: theirs[k] for k in neurons})
    assert distance(a, ours) == pytest.approx(total + rest, rel=1e-9)
