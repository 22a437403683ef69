"""Sides that are narrower than their axis: one form up to rotations, hidden gauges found, and no lower distance by
another method."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depth import more
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.general_linear_orbit import linear_optimum, rank_deficient
from isomerge.matching.narrow import narrow_form, spread
from isomerge.matching.refine import refine
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec
from matching.drawn import draw, moved
from matching.test_general_linear import Heads, lbfgs, reached, sides

SEEDS = st.integers(0, 2**20)
SHAPES = [(3, 6, 6), (3, 6, 9), (9, 6, 3), (3, 6, 4), (4, 6, 4), (2, 6, 2), (1, 5, 5), (5, 5, 8)]
"""Widths of the plain side, the axis and the dual side."""


def narrow(seed: int, shape: tuple[int, int, int], *, noise: float | None, condition: float = 1.0) -> Heads:
    """x1, y1 (moved), x2, y2 (anchor) [1, n, widths]: unrelated, or noisy copies under a hidden gauge."""
    rng = torch.Generator().manual_seed(seed)
    p, n, q = shape
    x2, y2, u, v = (torch.randn(1, n, d, generator=rng, dtype=torch.float64) for d in (p, q, p, q))
    g = GROUPS["GL"].sample((1,), n, rng, condition)
    x, y = (u, v) if noise is None else (x2 + noise * u, y2 + noise * v)
    return g @ x, torch.linalg.inv(g).mT @ y, x2, y2


def in_form(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides in their form."""
    g, dead = narrow_form(x @ x.mT, y @ y.mT, (x.shape[-1], y.shape[-1]))
    assert not bool(dead.any())
    return g @ x, torch.linalg.inv(g).mT @ y


@settings(max_examples=20)
@given(SEEDS, st.sampled_from(SHAPES), st.sampled_from([1.0, 10.0, 100.0]))
def test_one_form_for_every_gauge(seed: int, shape: tuple[int, int, int], condition: float) -> None:
    """All products of both sides agree, so that only a rotation is left; and the form is its own."""
    u, v, x, y = narrow(seed, shape, noise=0.0, condition=condition)
    (u, v), (x, y) = in_form(u, v), in_form(x, y)
    for mine, theirs in ((u.mT @ u, x.mT @ x), (v.mT @ v, y.mT @ y), (u.mT @ v, x.mT @ y)):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))
    again, _ = narrow_form(u @ u.mT, v @ v.mT, (shape[0], shape[2]))
    assert torch.allclose(again, torch.eye(shape[1], dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("shape", [s for s in SHAPES if min(s) < s[1]])
def test_the_form_is_as_told(shape: tuple[int, int, int]) -> None:
    """Balanced where both sides lie; beside that the wide one is orthogonal to it, of one length: the mean one."""
    p, n, q = shape
    _, _, x, y = narrow(1, shape, noise=None)
    x, y = in_form(x, y)
    small, large = sorted((x @ x.mT, y @ y.mT), key=lambda gram: int(torch.linalg.matrix_rank(gram)))
    assert torch.allclose(small @ large, small @ small, atol=1e-9)
    values = torch.linalg.eigvalsh(large - small)[0]
    alone = min(max(p, q), n) - min(p, q)
    length = small.diagonal(dim1=-2, dim2=-1).sum(-1) / min(p, q)
    assert torch.allclose(values[:-alone] if alone else values, torch.zeros(n - alone).double(), atol=1e-9)
    assert torch.allclose(values[n - alone :], length.expand(alone), rtol=1e-9)


def test_what_is_dead_stays() -> None:
    """A side that is wider than the axis and lacks rank, one that is nothing, and a product of less rank."""
    _, _, x, y = narrow(1, (3, 6, 8), noise=None)
    wrong = y.clone()
    wrong[:, 0] = 0
    met = torch.linalg.qr(x).Q[..., :1]
    for a, b in ((x, wrong), (0 * x, y), (x, (y - met @ (met.mT @ y))[..., :6])):
        g, dead = narrow_form(a @ a.mT, b @ b.mT, (a.shape[-1], b.shape[-1]))
        assert bool(dead.all())
        assert torch.equal(g[0], torch.eye(6, dtype=torch.float64))


def test_full_rank_is_balanced_as_ever() -> None:
    """Bit for bit, where nothing lacks rank."""
    _, _, x, y = narrow(2, (6, 6, 9), noise=None)
    grams = x @ x.mT, y @ y.mT
    found, plain = narrow_form(*grams, (6, 9)), GROUPS["GL"].balance(*grams)
    assert plain is not None
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, plain, strict=True))


# ------------------------------------------------------------------------ matching


@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_planted_gauge_is_found(shape: tuple[int, int, int], condition: float) -> None:
    """Exact copies come back; noisy ones as near as their noise."""
    widths = shape[0], shape[2]
    for noise, most in ((0.0, 1e-12), (0.02, 1.2 * 0.02**2)):
        parts = narrow(3, shape, noise=noise, condition=condition)
        here = sides(parts)
        found = linear_optimum(here, widths=widths)
        assert not bool(rank_deficient(here, widths).any())
        assert float(found.value / here.size()) < most
        assert float(reached(parts, found.element) / here.size()) < most


@pytest.mark.parametrize("noise", [0.3, None])
@pytest.mark.parametrize("shape", [(1, 3, 3), (5, 3, 2), (1, 3, 2), *more((1, 2, 2), (2, 3, 5), (2, 3, 2))])
def test_no_descent_is_lower(shape: tuple[int, int, int], noise: float | None) -> None:
    """LBFGS from eight starts in both components of the group, of which related heads need no more than one."""
    parts = narrow(5, shape, noise=noise, condition=5.0)
    found = float(linear_optimum(sides(parts), widths=(shape[0], shape[2])).value)
    rng = torch.Generator().manual_seed(1)
    best = min(lbfgs(parts, GROUPS["GL"].sample((1,), shape[1], rng, 9.0)) for _ in range(8))
    assert found <= best * (1 + 1e-6)


# --------------------------------------------------------------------------- units

NARROW = """
model narrow
size d = 3
size n = 7
size m = 7
size o = 4
space n: GL
space m: Perm
down.weight  n d
down.bias    n
up.weight    m n'
out.weight   o m'
"""


def unit(seed: int) -> tuple[Spec, Blocks]:
    """A map of three inputs and a bias to seven, which neurons read."""
    spec = parse_spec(NARROW, {}, "narrow.spec")
    return spec, draw(spec, seed, "weight", "bias", spread=1.0)


def disguised(spec: Spec, blocks: Blocks) -> Blocks:
    """The same unit in another basis, its neurons in another order."""
    rng = torch.Generator().manual_seed(4)
    g = {"n": GROUPS["GL"].sample((), 7, rng, 20.0), "m": torch.randperm(7, generator=rng)}
    return moved(Alignment(spec, g), blocks)


def names(blocks: Blocks) -> dict[str, Block]:
    return {block.key: block for block in blocks}


def test_a_unit_and_its_eigenbasis() -> None:
    """No block is dead, what was found is what was done, and what is spread has an eigenbasis that no disguise
    changes."""
    spec, first = unit(1)
    values = []
    for blocks in (first, disguised(spec, first)):
        there = dict(blocks)
        g, dead = canonical_gauge(spec, there)
        assert dead == []
        assert all(torch.allclose(t, there[block], atol=1e-9) for block, t in moved(g, blocks).items())
        wide = spread(spec, spec, there).applied(there)
        x, b, y = (wide[names(wide)[name]] for name in ("down.weight", "down.bias", "up.weight"))
        values.append(torch.linalg.eigvalsh(x @ x.mT + torch.outer(b, b) + y.mT @ y))
        gaps = values[-1].diff() / values[-1][-1]
        assert float(gaps.min()) > 1e-3
    assert torch.allclose(*values, rtol=1e-8)


def test_axes_that_are_turned_tell_nothing() -> None:
    """Along a stream that may be rotated all entries weigh alike."""
    spec, first = unit(1)
    turned = parse_spec(NARROW.replace("space m: Perm", "space m: O"), {}, "narrow.spec")
    canonical_gauge(spec, first)
    found = spread(spec, turned, first)["n"]
    assert torch.allclose(found, torch.eye(7, dtype=torch.float64), atol=1e-9)


def test_refining_finds_the_basis() -> None:
    """In the right order of neurons."""
    spec, first = unit(1)
    plain = spec.restrict(["n"])
    twin = {block: t.clone() for block, t in first.items()}
    twin = moved(Alignment(plain, {"n": GROUPS["GL"].sample((), 7, torch.Generator().manual_seed(2), 20.0)}), twin)
    refine(plain, first, twin)
    assert all(torch.allclose(t, twin[block], atol=1e-6) for block, t in first.items())
