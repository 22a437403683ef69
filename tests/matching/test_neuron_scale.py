"""Neurons matched with their scales: every pair exact, every assignment against all permutations."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from isomerge.evidence.law import random_alignment
from isomerge.matching import neuron_scale
from isomerge.matching.distances import distance
from isomerge.matching.local import move_unit
from isomerge.matching.neuron_scale import neuron_candidate, neuron_optimum, scaled_pairs
from isomerge.matching.rescale import positive_root, quartic_scale, quartic_value
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Spec
from matching.drawn import Blocks, draw, moved, small_spec

# ------------------------------------------------------------------------------ pairs


def brute(alpha: float, beta: float, plus: float, minus: float, signed: bool) -> float:
    """Eq. 11 at the best real root of Eq. 12 that the companion matrix knows, polished."""
    unit = (beta / alpha) ** 0.25
    size = math.sqrt(alpha * beta)
    p, m = plus * unit / size, minus / (unit * size)
    found = []
    for root in np.roots([1.0, -p, 0.0, m, -1.0]):
        a = root.real
        if a == 0 or (a < 0 and not signed):
            continue
        for _ in range(40):
            value, slope = a - p - 1 / a**3 + m / a**2, 1 + 3 / a**4 - 2 * m / a**3
            moved_to = a - value / slope if slope > 0 else a
            a = moved_to if moved_to * a > 0 else a
        found.append(a * a + a**-2 - 2 * p * a - 2 * m / a)
    return size * min(found)


LOGS, RATIOS = st.floats(-6, 6), st.floats(-30, 30)


@settings(max_examples=300)
@given(LOGS, LOGS, RATIOS, RATIOS, st.booleans())
@example(0.0, 0.0, 2.0, 2.0, True)  # sigma = 4, delta = 0: three roots in one
@example(0.0, 0.0, 2.0, 2.0 - 1e-9, False)
@example(0.0, 0.0, 5.0, 5.0, True)  # two minima of the same sign
@example(0.0, 0.0, 5.0, -5.0, True)  # two minima of opposite signs
@example(0.0, 0.0, -5.0, -5.0, False)  # both sides point the other way, and may not be turned
@example(0.0, 0.0, 0.0, 0.0, True)
@example(6.0, -6.0, 30.0, -30.0, True)
def test_a_pair_is_exact(log_a: float, log_b: float, ratio_p: float, ratio_m: float, signed: bool) -> None:
    """To 1e-10 of every real root; the value is the factor's."""
    alpha, beta = math.exp(log_a), math.exp(log_b)
    numbers = (alpha, beta, ratio_p * math.sqrt(alpha), ratio_m * math.sqrt(beta))
    traces = [torch.tensor(x, dtype=torch.float64) for x in numbers]
    value, a = float(quartic_value(*traces, signed=signed)), float(quartic_scale(*traces, signed=signed))
    size = math.sqrt(alpha * beta) + abs(value)
    assert signed or a > 0
    assert value == pytest.approx(brute(*numbers, signed), abs=1e-10 * size)
    at = alpha * a * a - 2 * a * numbers[2] + beta / a**2 - 2 * numbers[3] / a
    assert at == pytest.approx(value, abs=1e-10 * (size + alpha * a * a + beta / a**2))


@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(0, 1e4)), min_size=1, max_size=20))
def test_the_root_is_one(pairs: list[tuple[float, float]]) -> None:
    """The stationary point on the side of the minimum: a zero with the curve rising through it."""
    sigma, delta = torch.tensor(pairs, dtype=torch.float64).T
    y = positive_root(sigma, delta)
    value = 4 * y - sigma * y / (1 + y * y).sqrt() - delta
    assert bool((y >= 0).all())
    assert bool((value.abs() <= 1e-9 * (1 + sigma.abs() + delta)).all())
    step = 1e-4 * (1 + y)
    above = 4 * (y + step) - sigma * (y + step) / (1 + (y + step) ** 2).sqrt() - delta
    assert bool((above > 0).all())


# ------------------------------------------------------------------------ assignments

SMALL: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": ({"hidden_size": 3, "num_attention_heads": 1, "head_dim": 2, "intermediate_size": 4}, ("mlp.",)),
    "bert": (
        {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 5, "hidden_act": "relu"},
        ("intermediate", "{l}.output.dense"),
    ),
    "t5": (
        {"d_model": 3, "num_heads": 1, "d_kv": 2, "d_ff": 4, "feed_forward_proj": "gated-gelu"},
        ("encoder.block.{l}.layer.1.(DenseReluDense|mlp).wi_", "encoder.block.{l}.layer.1.(DenseReluDense|mlp).wo"),
    ),
}
ROLES = ("ff", "scale")


def part(kind: str, *seeds: int, spread: float = 0.7) -> tuple[Spec, list[Blocks]]:
    """One MLP's blocks, drawn as often as asked."""
    config, words = SMALL[kind]
    spec = small_spec(kind, **config)
    spec = spec.restrict([n for n, s in spec.spaces.items() if s.role in ROLES])
    return spec, [draw(spec, seed, *words, spread=spread) for seed in seeds]


def rows(kind: str, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [n, ...] that a factor multiplies, that it divides, and that it leaves; biases where they belong."""
    t = {".".join(block.key.split(".")[-3:]): x for block, x in blocks.items()}

    def with_bias(name: str) -> Tensor:
        return torch.cat([t[f"{name}.weight"], t[f"{name}.bias"][:, None]], -1)

    if kind == "llama":
        return with_bias("mlp.up_proj"), t["mlp.down_proj.weight"].T, with_bias("mlp.gate_proj")
    if kind == "bert":
        up = with_bias("intermediate.dense")
        return up, t["output.dense.weight"].T, up[:, :0]
    wi, wo, gate = (t[f"DenseReluDense.{name}.weight"] for name in ("wi_1", "wo", "wi_0"))
    return wi, wo.T, gate


def best_of_all(a: tuple[Tensor, ...], b: tuple[Tensor, ...], signed: bool) -> float:
    """The least cost over every permutation, with the best factor of every pair."""
    n = len(a[0])
    cost = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            (u2, w2, g2), (u1, w1, g1) = (tuple(x[k] for x in side) for side, k in ((a, i), (b, j)))
            traces = (float(u1 @ u1), float(w1 @ w1), float(u1 @ u2), float(w1 @ w2))
            cost[i, j] = brute(*traces, signed) + float(u2 @ u2 + w2 @ w2) + float((g1 - g2).square().sum())
    return min(sum(cost[i, p[i]] for i in range(n)) for p in permutations(range(n)))


def rest_of(kind: str, a: Blocks, b: Blocks) -> float:
    """The squared distance of what no neuron touches: output biases."""
    loose = [k for k in a if k.key.endswith(("down_proj.bias", "output.dense.bias"))]
    return sum(float((a[k] - b[k]).square().sum()) for k in loose)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", SMALL)
def test_against_all_permutations(kind: str, seed: int) -> None:
    """The assignment over exact pair costs is the least over permutations and factors together, and is attained."""
    spec, (a, b) = part(kind, seed, seed + 60)
    g = neuron_optimum(spec, a, b)
    assert g is not None
    best = best_of_all(rows(kind, a), rows(kind, b), signed=kind != "bert") + rest_of(kind, a, b)
    assert distance(a, moved(g, b)) == pytest.approx(best, rel=1e-9)
    assert set(g) == {key for pair in scaled_pairs(spec, b) for key in pair}


@pytest.mark.parametrize("kind", SMALL)
def test_the_guard_takes_it(kind: str) -> None:
    """`move_unit` reaches the same optimum, which neurons matched without factors miss at times."""
    missed = 0
    for seed in range(6):
        _, (a, b) = part(kind, seed, seed + 60)
        selection = select_spaces(small_spec(kind, **SMALL[kind][0]), "ffn")
        best = best_of_all(rows(kind, a), rows(kind, b), signed=kind != "bert") + rest_of(kind, a, b)
        found = move_unit(selection, a, b, guard=True).alignment
        assert distance(a, moved(found, b)) == pytest.approx(best, rel=1e-9)
        canonical = move_unit(selection, a, b, guard=False).alignment
        missed += distance(a, moved(canonical, b)) > best * (1 + 1e-6)
    assert missed


@pytest.mark.parametrize("seed", range(3))
def test_inside_experts(seed: int) -> None:
    """Expert by expert, wherever the experts were sent."""
    config = {
        "hidden_size": 3,
        "num_attention_heads": 1,
        "head_dim": 2,
        "num_local_experts": 3,
        "intermediate_size": 4,
    }
    spec = small_spec("mixtral", **config)
    spec = spec.restrict(["e", "ff", "u"])
    a, b = (draw(spec, s, "block_sparse_moe", spread=0.7) for s in (seed, seed + 60))
    order = torch.tensor([2, 0, 1])
    found = Alignment(spec, {"e[0]": order, "ff[0]": torch.zeros(3, 4, dtype=torch.int64)})
    g = neuron_candidate(spec, a, b, found)
    assert g is not None
    assert torch.equal(g["e[0]"], order)

    def experts(blocks: Blocks) -> dict[str, Tensor]:
        return {k.key.split(".")[-2]: t for k, t in blocks.items()}

    one, two = experts(a), experts(b)
    total = float((one["gate"] - two["gate"][order]).square().sum())
    for i, j in enumerate(order.tolist()):
        parts = (
            tuple(x[n][k].T if n == "w2" else x[n][k] for n in ("w3", "w2", "w1")) for x, k in ((one, i), (two, j))
        )
        total += best_of_all(*parts, signed=True)
    assert distance(a, moved(g, b)) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("kind", SMALL)
def test_a_moved_copy_comes_home(kind: str) -> None:
    """Permuted and rescaled by factors of up to thirty."""
    spec, (a,) = part(kind, 3)
    g = random_alignment(spec, list(a), torch.Generator().manual_seed(1), condition=900.0)
    b = moved(g, a)
    step = neuron_optimum(spec, a, b)
    assert step is not None
    assert distance(a, moved(step, b)) < 1e-20 * distance(a, b)


def test_factors_decide_who_is_whose() -> None:
    """A neuron turned by -1 and halved is recognised; by overlaps alone another one looks closer."""
    spec, (a,) = part("llama", 5, spread=0.0)
    b = {k: t.clone() for k, t in a.items()}
    n = spec.sizes["ff"]
    scale = torch.linspace(-8, -0.125, n, dtype=torch.float64)
    Alignment(spec, {"u[0]": scale[:, None], "ff[0]": torch.arange(n).roll(1)}).act(b)
    step = neuron_optimum(spec, a, b)
    assert step is not None
    assert step["ff[0]"].tolist() == torch.arange(n).roll(1).argsort().tolist()
    assert distance(a, moved(step, b)) < 1e-20
    plain = spec.spaces["ff"].group.solve(
        sum(x @ y.T for x, y in zip(rows("llama", a), rows("llama", b), strict=True))
    )
    assert plain[0].tolist() != step["ff[0]"].tolist()


def test_chunks_and_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks give the same; beyond the budget there is none."""
    spec, (a, b) = part("llama", 0, 1)
    whole = neuron_optimum(spec, a, b)
    monkeypatch.setattr(neuron_scale, "CHUNK", 5)
    parts = neuron_optimum(spec, a, b)
    assert whole is not None
    assert parts is not None
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    assert neuron_optimum(spec, a, b, budget=100.0) is None
    found = Alignment(spec, {"ff[0]": torch.arange(4)})
    assert neuron_candidate(spec, a, b, found) is not None


def test_dead_neurons_keep_their_factor() -> None:
    """A neuron without an output column is placed, and scaled by one."""
    spec, (a, b) = part("llama", 0, 1)
    next(t for k, t in b.items() if "down_proj.weight" in k.key)[:, 2] = 0
    step = neuron_optimum(spec, a, b)
    assert step is not None
    assert float(step["u[0]"][2, 0]) == 1.0
    assert bool(step["u[0]"].isfinite().all())


@pytest.mark.parametrize("kind", ["gpt2", "qwen3", "llama"])
def test_where_there_are_none(kind: str) -> None:
    """No scales over neurons: GELU MLPs; attention; the factors of qk-norms, which sit over no permutation."""
    config = {"n_embd": 4, "n_head": 2, "n_inner": 5} if kind == "gpt2" else SMALL["llama"][0]
    spec = small_spec(kind, **config)
    blocks = draw(spec, 0, "mlp.c_fc" if kind == "gpt2" else "self_attn")
    assert scaled_pairs(spec.restrict(set(spec.spaces) - spec.residual_names), blocks) == []
