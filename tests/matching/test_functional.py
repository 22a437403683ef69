"""The functional cost: equal to its definition pair by pair, zero for twins, and optimal as an assignment."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch

from isomerge.matching import functional
from isomerge.matching.functional import (
    Neurons,
    feed_forward,
    functional_costs,
    hidden,
    match_neurons,
    promising_costs,
)

GELU, SILU = torch.nn.functional.gelu, torch.nn.functional.silu


def drawn(seed: int, m: int = 5, n: int = 40, d: int = 7, *, gated: bool = False) -> Neurons:
    """Random neurons whose own inputs are not the merged ones."""
    rng = torch.Generator().manual_seed(seed)
    parts = tuple(torch.randn(n, m, generator=rng, dtype=torch.float64) for _ in range(1 + gated))
    own = tuple(p + 0.3 * torch.randn(n, m, generator=rng, dtype=torch.float64) for p in parts)
    return Neurons(
        parts, hidden(own, SILU if gated else GELU), torch.randn(m, d, generator=rng, dtype=torch.float64)
    )


@pytest.mark.parametrize("gated", [False, True])
def test_costs_are_the_error_of_averaging(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition, written out; in chunks as well."""
    a, b = drawn(0, gated=gated), drawn(1, gated=gated)
    act = SILU if gated else GELU
    costs, signs = functional_costs(a, b, act, signs=gated)
    assert set(signs.unique().tolist()) == ({1.0, -1.0} if gated else {1.0})
    for i in range(5):
        for j in range(5):
            tried = []
            for s in (1, -1) if gated else (1,):
                mixed = tuple(
                    (x[:, i] + (s if k else 1) * y[:, j]) / 2
                    for k, (x, y) in enumerate(zip(a.merged, b.merged, strict=True))
                )
                merged = hidden(tuple(m[:, None] for m in mixed), act) * (a.out[i] + s * b.out[j]) / 2
                wanted = (a.own[:, i, None] * a.out[i] + b.own[:, j, None] * b.out[j]) / 2
                tried.append(float((merged - wanted).square().sum(1).mean()))
            assert float(costs[i, j]) == pytest.approx(min(tried), rel=1e-9, abs=1e-12)
            assert float(signs[i, j]) == (1, -1)[tried.index(min(tried))]
    monkeypatch.setattr(functional, "CHUNK", 7 * 40)
    again, same = functional_costs(a, b, act, signs=gated)
    assert torch.allclose(again, costs)
    assert torch.equal(same, signs)


@pytest.mark.parametrize("gated", [False, True])
def test_twins_cost_nothing(gated: bool) -> None:
    """Neurons in another order, and with other signs of up and down, are found at cost zero."""
    act = SILU if gated else GELU
    a = drawn(2, 9, gated=gated)
    a = Neurons(a.merged, hidden(a.merged, act), a.out)
    rng = torch.Generator().manual_seed(3)
    order = torch.randperm(9, generator=rng)
    s = torch.randint(0, 2, (9,), generator=rng).double() * 2 - 1 if gated else torch.ones(9, dtype=torch.float64)
    parts = tuple(x[:, order] * (s if k else 1) for k, x in enumerate(a.merged))
    b = Neurons(parts, a.own[:, order] * s, a.out[order] * s[:, None])
    p, signs = match_neurons(a, b, act, signs=gated)
    assert torch.equal(order[p], torch.arange(9))
    assert torch.equal(signs, s)
    assert float(functional_costs(a, b, act, signs=gated)[0].gather(1, p[:, None]).abs().max()) < 1e-12


def test_the_assignment_is_optimal() -> None:
    """Of all orders of five neurons, none costs less."""
    a, b = drawn(4), drawn(5)
    costs, _ = functional_costs(a, b, GELU)
    p, _ = match_neurons(a, b, GELU)
    reached = float(costs[torch.arange(5), p].sum())
    least = min(float(costs[torch.arange(5), torch.tensor(q)].sum()) for q in permutations(range(5)))
    assert reached == pytest.approx(least)


@pytest.mark.parametrize("gated", [False, True])
def test_promising_pairs_have_their_exact_cost(gated: bool) -> None:
    """With every partner tried nothing changes; with few, others cost more than any that was tried."""
    a, b, act = drawn(6, 9, gated=gated), drawn(7, 9, gated=gated), SILU if gated else GELU
    exact, signs = functional_costs(a, b, act, signs=gated)
    all_of_them = promising_costs(a, b, act, signs=gated, count=9)
    assert torch.allclose(all_of_them[0], exact, rtol=1e-12)
    assert torch.equal(all_of_them[1], signs)
    few, their_signs = promising_costs(a, b, act, signs=gated, count=2)
    known = torch.isclose(few, exact, rtol=1e-12)
    assert 18 <= int(known.sum()) <= 36
    assert torch.equal(their_signs[known], signs[known])
    for i, j in (~known).nonzero().tolist():
        assert few[i, j] >= max(few[i][known[i]].max(), few[:, j][known[:, j]].max())


@pytest.mark.parametrize("gated", [False, True])
def test_few_partners_do_nearly_as_well(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-related neurons in another order: a tenth of the partners loses less than a hundredth of the gain."""
    m, act = 120, SILU if gated else GELU
    a, noise = drawn(8, m, 60, 20, gated=gated), drawn(9, m, 60, 20, gated=gated)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(1))
    mixed = [(x + 0.7 * y)[:, order] for x, y in zip(a.merged, noise.merged, strict=True)]
    b = Neurons(mixed, hidden(mixed, act), (a.out + 0.7 * noise.out)[order])
    costs, _ = functional_costs(a, b, act, signs=gated)
    every, _ = match_neurons(a, b, act, signs=gated)
    monkeypatch.setattr(functional, "ALL_PAIRS", 100)
    monkeypatch.setattr(functional, "PROMISING", 12)
    few, _ = match_neurons(a, b, act, signs=gated)

    def total(p: torch.Tensor) -> float:
        return float(costs.gather(1, p[:, None]).sum())

    assert sorted(few.tolist()) == list(range(m))
    stored, least = float(costs.diagonal().sum()), total(every)
    assert least < 0.8 * stored
    assert total(few) - least < 0.01 * (stored - least)


@pytest.mark.parametrize(
    ("name", "readers", "biases", "scale"),
    [
        ("vit", 1, 1, False), ("gpt2", 1, 1, False), ("bert", 1, 1, False), ("llama", 2, 0, True),
        ("llama-biased", 2, 2, True), ("t5-gated", 2, 0, True), ("t5-relu", 1, 0, False), ("dinov2-swiglu", 2, 2, True),
        ("mixtral", 0, 0, False), ("vit-plain", 1, 1, False),
    ],
)  # fmt: skip
def test_layers_are_found_by_their_axes(toy: Callable, name: str, readers: int, biases: int, scale: bool) -> None:
    """Plain and gated, fused or not, Linear or Conv1D; experts are left alone."""
    from isomerge.symmetry.units import plan_units

    one = toy(name)
    local = one.spec.restrict(
        [*(n for n in one.spec.spaces if n not in one.spec.residual_names), *(s.name for s in one.spec.shifts)]
    )
    found = [layer for unit in plan_units(local, one.blocks) if (layer := feed_forward(one.spec, unit.blocks))]
    assert len(found) == {"mixtral": 0, "t5-gated": 5, "t5-relu": 5}.get(name, 3)
    for layer in found:
        assert len(layer.readers) == readers
        assert sum(b is not None for b in layer.biases) == biases
        assert (layer.scale is not None) == scale
        if readers == 2:
            gate = layer.readers[0]
            assert "gate" in gate[0].key or "wi_0" in gate[0].key or gate[1] == 0
