"""The complex factor of a RoPE pair: exact against many starts where it is hard, and certified."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from isomerge.matching.distances import distance
from isomerge.matching.joint import joint_optimum
from isomerge.matching.refine import refine
from isomerge.matching.rescale import complex_optimum, complex_scale
from isomerge.symmetry.groups import GROUPS
from matching.drawn import Blocks, draw, named, small_spec


def optimum(alpha: float, beta: float, plus: complex, minus: complex) -> tuple[complex, float, float]:
    """z, value and gap."""
    numbers = (
        torch.tensor(x, dtype=torch.float64) for x in (alpha, beta, *([c.real, c.imag] for c in (plus, minus)))
    )
    z, value, gap = complex_optimum(*numbers)
    return complex(*z.tolist()), float(value), float(gap)


def cost(z: complex, alpha: float, beta: float, plus: complex, minus: complex) -> float:
    """|z q1 - q2|^2 + |k1 / conj(z) - k2|^2 without the anchor's squares."""
    return alpha * abs(z) ** 2 + beta / abs(z) ** 2 - 2 * (np.conj(z) * plus + minus / z).real


def many_starts(alpha: float, beta: float, plus: complex, minus: complex) -> float:
    """The best of 24 descents over modulus and phase, from all over where either side has its own optimum."""
    middle = math.log(beta / alpha) / 4
    logs = {middle, middle - 2, middle + 2}
    logs |= {math.log(abs(plus) / alpha)} if abs(plus) > 1e-6 * alpha else set()
    logs |= {math.log(beta / abs(minus))} if abs(minus) > 1e-6 * beta else set()

    def at(x: np.ndarray) -> tuple[float, list[float]]:
        z = np.exp(complex(min(max(x[0], -40), 40), x[1]))
        up, down = np.conj(z) * plus, minus / z
        squares = alpha * abs(z) ** 2, beta / abs(z) ** 2
        slope = [2 * (squares[0] - squares[1] - (up - down).real), -2 * (up + down).imag]
        return cost(z, alpha, beta, plus, minus), slope

    found = (minimize(at, start, jac=True, method="BFGS", options={"gtol": 1e-10}).fun
             for start in product(sorted(logs), (-2.2, -0.7, 0.7, 2.2)))  # fmt: skip
    return float(min(found))


LOGS = st.floats(-6, 6)
ANGLES = st.floats(-math.pi, math.pi)
# overlaps as they can occur: |<q1, q2>| <= |q1| |q2|
RATIOS = st.floats(0, 30)


@settings(max_examples=25)
@given(LOGS, LOGS, RATIOS, RATIOS, ANGLES, ANGLES)
@example(0.0, 0.0, 2.0, 2.0, 0.0, math.pi)  # anti-aligned: two global minima
@example(0.0, 0.0, 2.0, 1.999, 0.0, math.pi)  # nearly: the better of two
@example(0.0, 0.0, 2.0, 2.0, 0.0, math.pi - 1e-3)
@example(-18.0, 3.0, 5.0, 5.0, 0.3, 0.3 + math.pi)  # a tiny plain side
@example(3.0, -18.0, 5.0, 5.0, 0.3, 0.3 + math.pi)  # a tiny dual side
@example(0.0, 0.0, 4.0, 0.0, 1.0, 0.0)
@example(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
@example(1.0, 1.0, 30.0, 30.0, 0.5, -2.6)
def test_against_many_starts(
    log_a: float, log_b: float, ratio_p: float, ratio_m: float, angle_p: float, angle_m: float
) -> None:
    """No descent from any start is better; the value is that of z, and the certificate is tight."""
    alpha, beta = math.exp(log_a), math.exp(log_b)
    plus = ratio_p * math.sqrt(alpha) * complex(math.cos(angle_p), math.sin(angle_p))
    minus = ratio_m * math.sqrt(beta) * complex(math.cos(angle_m), math.sin(angle_m))
    traces = (alpha, beta, plus, minus)
    z, value, gap = optimum(*traces)
    size = 2 * (alpha * abs(z) ** 2 + beta / abs(z) ** 2) + abs(value)
    assert value == pytest.approx(cost(z, *traces), abs=1e-12 * size)
    assert value <= many_starts(*traces) + 1e-10 * size
    assert 0 <= gap <= 1e-10 * size


@settings(max_examples=40)
@given(LOGS, LOGS, RATIOS, RATIOS, ANGLES)
def test_against_a_fine_line(log_a: float, log_b: float, ratio_p: float, ratio_m: float, angle: float) -> None:
    """With the phase in closed form, a line of 40 001 moduli holds nothing better and nothing below the bound."""
    alpha, beta, plus = math.exp(log_a), math.exp(log_b), ratio_p * math.exp(log_a / 2)
    minus = ratio_m * math.exp(log_b / 2) * complex(math.cos(angle), math.sin(angle))
    _, value, gap = optimum(alpha, beta, plus, minus)
    s = np.linspace(-12, 12, 40001)
    line = alpha * np.exp(2 * s) + beta * np.exp(-2 * s) - 2 * abs(np.exp(s) * plus + np.exp(-s) * minus)
    rounding = 1e-12 * (alpha + beta + abs(plus) + abs(minus) + abs(value))
    assert value - gap - rounding <= line.min()
    assert value <= line.min() + rounding


def test_two_global_minima() -> None:
    """Overlaps of 2 and -2: both valleys reach -2."""
    z, value, gap = optimum(1.0, 1.0, 2.0 + 0j, -2.0 + 0j)
    assert value == pytest.approx(-2.0, abs=1e-12)
    assert gap < 1e-8
    assert cost(1 / z.conjugate() * (1 if z.real * math.log(abs(z)) < 0 else -1), 1, 1, 2, -2) == pytest.approx(-2)


def test_it_is_the_joint_optimum_of_the_group() -> None:
    """The same search through 2 x 2 Grams."""
    rng = torch.Generator().manual_seed(0)
    plus, minus = (torch.randn(40, 2, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    alpha, beta = (torch.rand(40, generator=rng, dtype=torch.float64) + 0.1 for _ in range(2))
    overlaps = (torch.stack([c[..., 0, 0] + c[..., 1, 1], c[..., 1, 0] - c[..., 0, 1]], -1) for c in (plus, minus))
    _, value, _ = complex_optimum(alpha, beta, *overlaps)
    assert torch.allclose(value, joint_optimum(GROUPS["Complex"], alpha, beta, plus, minus).value, atol=1e-9)


def test_batches_of_any_shape() -> None:
    """A batch is its entries, zero sides among them."""
    rng = torch.Generator().manual_seed(1)
    alpha, beta = (torch.rand(2, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    plus, minus = (torch.randn(2, 3, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    alpha[1, 1] = 0
    z = complex_scale(alpha, beta, plus, minus)
    for i, j in product(range(2), range(3)):
        alone = complex_scale(alpha[i, j], beta[i, j], plus[i, j], minus[i, j])
        assert torch.allclose(z[i, j], alone, atol=1e-6)
    assert z[1, 1].tolist() == [1.0, 0.0]


GROUPED = {
    "hidden_size": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 5,
}


def pairs_of(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Queries [kv, pair, everything of the group's heads] and keys [kv, pair, everything] as complex numbers."""
    t = named(blocks)
    q = t["q_proj.weight"].reshape(2, 3, 2, 2, -1)  # kv, heads, (re im), pair, d
    k = t["k_proj.weight"].reshape(2, 2, 2, -1)
    queries = torch.complex(q[:, :, 0], q[:, :, 1]).permute(0, 2, 1, 3).reshape(2, 2, -1)
    return queries.numpy(), torch.complex(k[:, 0], k[:, 1]).numpy()


@pytest.mark.parametrize("seed", range(3))
def test_grouped_queries_sum_over_their_heads(seed: int) -> None:
    """One factor per key-value head and pair serves all query heads: against descents on the weights themselves."""
    spec = small_spec("llama", **GROUPED).restrict(["c"])
    a, b = (draw(spec, s, "q_proj.weight", "k_proj.weight", spread=1.0) for s in (seed, seed + 40))
    (q2, k2), (q1, k1) = pairs_of(a), pairs_of(b)
    best = 0.0
    for h, p in product(range(2), range(2)):
        x, y, u, v = q1[h, p], k1[h, p], q2[h, p], k2[h, p]
        traces = (float(abs(x @ x.conj())), float(abs(y @ y.conj())), complex(x.conj() @ u), complex(y.conj() @ v))
        best += many_starts(*traces) + float((abs(u) ** 2).sum() + (abs(v) ** 2).sum())
    after: dict = {block: t.clone() for block, t in b.items()}
    g: Tensor = refine(spec, a, after)["c[0]"]
    assert tuple(g.shape) == (2, 2, 2)
    assert distance(a, after) == pytest.approx(best, rel=1e-9)
