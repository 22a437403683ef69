"""The one-dimensional optima against dense grids, and refinement that never raises the distance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from isomerge.evidence.law import random_alignment
from isomerge.matching.distances import distance
from isomerge.matching.refine import refine
from isomerge.matching.rescale import complex_scale, quartic_scale
from matching.drawn import draw, moved, small_spec

SQUARES = st.floats(1e-3, 1e3)
OVERLAPS = st.floats(-1e3, 1e3)


def scalar(value: float) -> Tensor:
    """Float64."""
    return torch.tensor(value, dtype=torch.float64)


def cost(a: np.ndarray | float, alpha: float, beta: float, plus: float, minus: float) -> np.ndarray:
    """|a x1 - x2|^2 + |y1 / a - y2|^2 without its constant."""
    a = np.asarray(a)
    return alpha * a**2 - 2 * plus * a + beta / a**2 - 2 * minus / a


def grid_best(traces: tuple[float, float, float, float], signs: tuple[int, ...]) -> float:
    """The best value on a dense logarithmic grid, refined around its best points."""
    found = np.inf
    for sign in signs:
        logs = np.linspace(-16, 16, 4001)
        values = cost(sign * np.exp(logs), *traces)
        for at in np.argsort(values)[:3]:
            near = minimize_scalar(
                lambda s, sign=sign: float(cost(sign * np.exp(s), *traces)),
                bounds=(logs[at] - 0.02, logs[at] + 0.02), method="bounded", options={"xatol": 1e-12},
            )  # fmt: skip
            found = min(found, float(near.fun))
    return found


def size(*numbers: float) -> float:
    """The scale of rounding."""
    return 1 + sum(map(abs, numbers))


@given(SQUARES, SQUARES, OVERLAPS, OVERLAPS, st.booleans())
def test_real_factor_against_a_grid(alpha: float, beta: float, plus: float, minus: float, signed: bool) -> None:
    """No point of a dense grid is better, on either side of zero."""
    traces = (alpha, beta, plus, minus)
    a = float(quartic_scale(*map(scalar, traces), signed=signed))
    best = grid_best(traces, (1, -1) if signed else (1,))
    assert a != 0
    assert signed or a > 0
    assert float(cost(a, *traces)) <= best + 1e-8 * size(best)


@given(SQUARES, SQUARES, st.floats(0.1, 1e3), st.floats(0.1, 1e3))
def test_negative_factors_are_found(alpha: float, beta: float, plus: float, minus: float) -> None:
    """When both sides point the other way the best factor is negative, and mirrors the positive one."""
    negative = quartic_scale(scalar(alpha), scalar(beta), scalar(-plus), scalar(-minus))
    positive = quartic_scale(scalar(alpha), scalar(beta), scalar(plus), scalar(minus))
    assert float(negative) < 0 < float(positive)
    assert float(negative) == pytest.approx(-float(positive), rel=1e-5)
    kept = quartic_scale(scalar(alpha), scalar(beta), scalar(-plus), scalar(-minus), signed=False)
    assert float(kept) > 0


@given(SQUARES, SQUARES, st.floats(0.05, 20), st.booleans())
def test_planted_factors_are_recovered(alpha: float, beta: float, factor: float, mirrored: bool) -> None:
    """x2 = a x1, y2 = y1 / a: the factor comes back."""
    a = -factor if mirrored else factor
    found = quartic_scale(scalar(alpha), scalar(beta), scalar(a * alpha), scalar(beta / a))
    assert float(found) == pytest.approx(a, rel=1e-6)


def test_zero_sides_stay() -> None:
    """Where a side is zero nothing can be balanced; others in the batch are not disturbed."""
    alpha = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    beta = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    c = torch.tensor([0.0, 0.0, -3.0], dtype=torch.float64)
    found = quartic_scale(alpha, beta, c, c)
    assert found[:2].tolist() == [1.0, 1.0]
    assert float(found[2]) == float(quartic_scale(*(x[2] for x in (alpha, beta, c, c))))
    assert float(found[2]) < 0
    pairs = torch.stack([c, c], -1)
    assert complex_scale(alpha, beta, pairs * 0, pairs * 0)[:2].tolist() == [[1.0, 0.0], [1.0, 0.0]]


@given(st.lists(st.tuples(SQUARES, SQUARES, OVERLAPS, OVERLAPS), min_size=2, max_size=5))
def test_batches_are_independent(rows: list[tuple[float, float, float, float]]) -> None:
    """A batch is its entries."""
    traces = torch.tensor(rows, dtype=torch.float64).T
    together = quartic_scale(*traces)
    assert together.tolist() == pytest.approx([float(quartic_scale(*t)) for t in traces.T], rel=1e-9)


def complex_cost(z: np.ndarray, alpha: float, beta: float, plus: complex, minus: complex) -> np.ndarray:
    """|z q1 - q2|^2 + |k1 / conj(z) - k2|^2 without its constant; overlaps are <second, first>."""
    return alpha * abs(z) ** 2 + beta / abs(z) ** 2 - 2 * (np.conj(z) * plus + minus / z).real


def pair(value: complex) -> Tensor:
    """A complex number as two reals."""
    return torch.tensor([value.real, value.imag], dtype=torch.float64)


COMPLEX = st.builds(complex, st.floats(-100, 100), st.floats(-100, 100))


@settings(max_examples=25)
@given(st.floats(0.01, 100), st.floats(0.01, 100), COMPLEX, COMPLEX)
def test_complex_factor_against_a_grid(alpha: float, beta: float, plus: complex, minus: complex) -> None:
    """No modulus and phase of a dense grid, refined, is better."""
    traces = (alpha, beta, plus, minus)
    z = complex(*complex_scale(scalar(alpha), scalar(beta), pair(plus), pair(minus)).tolist())
    logs, angles = np.meshgrid(np.linspace(-10, 10, 401), np.linspace(-np.pi, np.pi, 97))
    values = complex_cost(np.exp(logs + 1j * angles), *traces)
    at = np.unravel_index(values.argmin(), values.shape)
    near = minimize(
        lambda x: float(complex_cost(np.exp(x[0] + 1j * x[1]), *traces)),
        [logs[at], angles[at]], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-10},
    )  # fmt: skip
    assert float(complex_cost(np.array(z), *traces)) <= float(near.fun) + 1e-7 * size(float(near.fun))


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.05, 20), st.floats(-3, 3))
def test_planted_complex_factors(alpha: float, beta: float, modulus: float, angle: float) -> None:
    """q2 = z q1 and k2 = k1 / conj(z): z comes back."""
    z = modulus * np.exp(1j * angle)
    found = complex_scale(scalar(alpha), scalar(beta), pair(alpha * z), pair(beta / np.conj(z)))
    assert complex(*found.tolist()) == pytest.approx(z, rel=1e-5)


# ------------------------------------------------------------------------- refine

GROUPED = {
    "hidden_size": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 5,
}
PLAIN = {"hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 5}
REFINED = {
    "bert": {**PLAIN, "hidden_act": "relu"},
    "gpt2": {"n_embd": 6, "n_head": 2, "n_inner": 5},
    "vit": PLAIN,
    "llama": GROUPED,
    "qwen3": GROUPED,
    "mixtral": {**GROUPED, "num_local_experts": 3},
    "t5": {"d_model": 6, "num_heads": 2, "d_kv": 3, "d_ff": 5, "feed_forward_proj": "gated-gelu"},
}
BLOCK = ("attn", "mlp", "attention.", "intermediate", "{l}.output", "block_sparse_moe", "Dense", "Attention.")


@pytest.mark.parametrize("kind", REFINED)
@settings(max_examples=15)
@given(st.integers(0, 2**20), st.booleans(), st.booleans(), st.floats(0, 3))
def test_refine_never_raises_the_distance(kind: str, seed: int, rotate: bool, shift: bool, spread: float) -> None:
    """From unrelated weights of any sizes, each exact step goes down or stays; what it reports is what it did."""
    spec = small_spec(kind, **REFINED[kind])
    a, b = draw(spec, seed, *BLOCK, spread=spread), draw(spec, seed + 1, *BLOCK, spread=spread)
    after = {block: t.clone() for block, t in b.items()}
    g = refine(spec.restrict([*set(spec.spaces) - spec.residual_names, *(s.name for s in spec.shifts)]), a, after,
               rotate=rotate, shift=shift)  # fmt: skip
    assert distance(a, after) < distance(a, b) * (1 + 1e-10)
    assert distance(after, moved(g, b)) <= 1e-16 * (
        distance(a, b) + distance(after, {k: t * 0 for k, t in b.items()})
    )


@pytest.mark.parametrize("kind", ["bert", "llama", "qwen3", "mixtral", "t5"])
def test_refine_undoes_continuous_moves(kind: str) -> None:
    """Close to home, a few rounds bring a copy moved by continuous spaces back."""
    spec = small_spec(kind, **REFINED[kind])
    smooth = [n for n, s in spec.spaces.items() if s.group_name in ("Complex", "Scale", "PositiveScale")]
    local = spec.restrict([n for n in smooth if n not in spec.residual_names])
    a = draw(spec, 3, *BLOCK)
    g = random_alignment(local, list(a), torch.Generator().manual_seed(1), condition=9.0)
    b = moved(g, a)
    assert distance(a, b) > 1e-3
    for _ in range(30):
        refine(local, a, b)
    assert distance(a, b) < 1e-12


def test_negative_multiples_of_one_are_in_gl() -> None:
    """Where the two sides disagree about the sign, -a may be the best multiple of the identity."""
    spec = small_spec("bert", **{**PLAIN, "num_attention_heads": 6}).restrict(["qk"])
    a = draw(spec, 0, "query.weight", "key.weight")
    b = {block: t / (-3 if "query" in block.key else 0.25) for block, t in a.items()}
    after = {block: t.clone() for block, t in b.items()}
    refine(spec, a, after)
    best = sum(
        grid_best(
            (*(float(y[i].square().sum()) for y in b.values()), *(float((x[i] * b[k][i]).sum()) for k, x in a.items())),
            (1, -1),
        )
        + sum(float(x[i].square().sum()) for x in a.values())
        for i in range(6)
    )  # fmt: skip
    assert distance(a, after) == pytest.approx(best, rel=1e-6)
