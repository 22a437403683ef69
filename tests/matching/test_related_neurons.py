"""Neurons of related models with their factors: whatever is proven is the optimum, and the long way round
agrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.matching import local, neuron_scale, sketch
from isomerge.matching.distances import distance
from isomerge.matching.factors import Factors
from isomerge.matching.local import move_unit
from isomerge.matching.neuron_scale import neuron_optimum
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.language.spec import Spec
from matching.drawn import draw, moved, small_spec

NEURONS, WIDTH = 12, 24
CONFIG = {"hidden_size": WIDTH, "num_attention_heads": 1, "head_dim": 2, "intermediate_size": NEURONS}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few directions and no least size, so that small cases go the whole way."""
    monkeypatch.setattr(neuron_scale, "SMALLEST", 2)
    monkeypatch.setattr(sketch, "DIRECTIONS", 8)
    monkeypatch.setattr(sketch, "STEP", 4)
    monkeypatch.setattr(sketch, "WORTH", 1.0)
    monkeypatch.setattr(sketch, "ROWS", 5)


def pair(seed: int, noise: float, twist: str = "", n: int = NEURONS, **config: Any) -> tuple[Spec, Blocks, Blocks]:
    """An MLP of n neurons, and the same in another order with other factors and noise, made awkward."""
    spec = small_spec("llama", **{**CONFIG, "intermediate_size": n}, **config)
    spec = spec.restrict([name for name, s in spec.spaces.items() if s.role in ("ff", "scale")])
    a = draw(spec, seed, "mlp.")
    rng = torch.Generator().manual_seed(seed)
    for block, t in a.items():
        rows = t.mT if "down" in block.key and t.ndim > 1 else t
        if len(rows) != n:
            continue
        if twist == "twice":
            rows[1] = rows[0]
        if twist == "sizes":
            rows *= torch.logspace(-3, 3, n, dtype=torch.float64).reshape(-1, *[1] * (rows.ndim - 1))
        if (
            twist == "gates" and "gate" in block.key
        ):  # as good as none: nothing tells neurons apart but what factors reach
            rows *= 1e-5
        if twist == "dead" and "down" in block.key:
            rows[: n // 2] = 0
    spread = torch.randn(n, generator=rng, dtype=torch.float64).exp()
    order = torch.randperm(n, generator=rng)
    g = Alignment(spec, {"ff[0]": order, "u[0]": (spread * (1 - 2 * (order % 2)))[:, None]})
    b = moved(g, a)
    for t in b.values():
        t += noise * torch.randn(t.shape, generator=rng, dtype=torch.float64)
    return spec, a, b


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]),
    st.sampled_from(["", "", "twice", "sizes", "gates", "dead"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=120)
def test_what_is_proven_is_optimal(seed: int, noise: float, twist: str, half: bool) -> None:
    """Against the assignment over the exact costs of all pairs, in float32 as well."""
    spec, a, b = pair(seed, noise, twist, mlp_bias=bool(seed % 2))
    if half:
        a, b = ({block: t.float() for block, t in side.items()} for side in (a, b))
    found = neuron_scale.related_neurons(spec, a, b)
    rows = neuron_scale.neurons_of(spec, "u", a, b)
    proven = neuron_scale._proven(rows, 0, Factors.of("Scale"))  # pyright: ignore[reportPrivateUsage]
    if twist == "twice" and noise == 0:
        assert found is None
        assert proven is None
    best = neuron_scale._profit(rows, 0, Factors.of("Scale"))  # pyright: ignore[reportPrivateUsage]
    wanted = spec.spaces["ff"].group.solve(best)[0]
    reached = best.gather(1, wanted[:, None]).sum()
    scale = sum(float(t.square().sum()) for side in (a, b) for t in side.values())
    for p in ([] if found is None else [found["ff[0]"]]) + ([] if proven is None else [proven]):
        assert sorted(p.tolist()) == list(range(NEURONS))
        assert float(reached - best.gather(1, p[:, None]).sum()) <= 1e-6 * scale
    if found is not None:
        exact = neuron_optimum(spec, a, b)
        assert exact is not None
        assert distance(a, moved(found, b)) <= distance(a, moved(exact, b)) + 1e-6 * scale


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_related_neurons_are_proven(noise: float) -> None:
    """Twins and near ones are, strangers are not, nor where gates say nothing."""
    spec, a, b = pair(3, noise)
    found = neuron_scale.related_neurons(spec, a, b)
    assert found is not None
    assert distance(a, moved(found, b)) <= (1e-20 if not noise else 0.01) * distance(a, b)
    assert neuron_scale.related_neurons(spec, a, pair(4, noise)[2]) is None
    assert neuron_scale.related_neurons(*pair(3, 0.05, "gates")) is None


def test_the_long_way_round_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """`move_unit` takes the proven optimum, and reaches what gauges, candidates and their refinement reach without
    it."""
    for seed in range(4):
        _, a, b = pair(seed, 0.03)
        selection = select_spaces(small_spec("llama", **CONFIG), "ffn")
        with monkeypatch.context() as without:
            without.setattr(local, "related_neurons", lambda *given: None)
            long = move_unit(selection, a, b, guard=True).alignment
            without.setattr(neuron_scale, "_proven", lambda *given: None)
            longest = move_unit(selection, a, b, guard=True).alignment
        short = move_unit(selection, a, b, guard=True)
        assert short.gaps is not None
        least = distance(a, moved(longest, b))
        assert least < 0.5 * distance(a, b)
        assert sum(short.gaps.values()) == pytest.approx(least, rel=1e-12)
        assert distance(a, moved(long, b)) == pytest.approx(least, rel=1e-12)


def test_dead_neurons_are_left_to_the_gauges() -> None:
    """They have no balanced factor, and are told."""
    spec, a, b = pair(3, 0.0, "dead")
    assert neuron_scale.related_neurons(spec, a, b) is None
    spec, a, b = pair(3, 0.0)
    assert neuron_scale.related_neurons(spec, a, b) is not None


def test_a_bound_that_forgets_the_gates_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that trusts the nearest gates whatever the rest costs: the property above can fail."""
    monkeypatch.setattr(neuron_scale, "MARGIN", -1e9)
    monkeypatch.setattr(neuron_scale, "telling_sketch", lambda one, two, _costs: sketch.Sketch.of(one, two, 8))
    wrong = 0
    for seed in range(80):
        spec, a, b = pair(seed, 0.05, "gates", 3)
        found, exact = neuron_scale.related_neurons(spec, a, b), neuron_optimum(spec, a, b)
        if found is not None and exact is not None:
            wrong += distance(a, moved(found, b)) > distance(a, moved(exact, b)) * 1.001
    assert wrong


def test_starts_that_refining_cannot_tell_apart_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor per neuron alone, one start for each permutation; the result is that of all starts."""
    monkeypatch.setattr(local, "related_neurons", lambda *given: None)
    _, a, b = pair(5, 0.1)
    selection = select_spaces(small_spec("llama", **CONFIG), "ffn")
    tried = []
    refined = local._refined  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(local, "_refined", lambda *given, **how: tried.append(1) or refined(*given, **how))
    few = move_unit(selection, a, b, guard=True).alignment
    count = len(tried)
    monkeypatch.setattr(local, "_different", lambda spec, blocks, starts: list(starts))
    many = move_unit(selection, a, b, guard=True).alignment
    assert count < len(tried) - count
    assert distance(a, moved(few, b)) == pytest.approx(distance(a, moved(many, b)), rel=1e-12)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("spaces", ["default", "paper"])
@pytest.mark.parametrize("word", ["mlp.", "self_attn"])
def test_nothing_that_is_given_is_changed(word: str, spaces: str, guard: bool) -> None:
    """Refining is in place, on tensors of its own: also on those that nothing has moved before."""
    spec = small_spec("llama", hidden_size=8, num_attention_heads=2, head_dim=4, intermediate_size=6)
    a, b = draw(spec, 0, word), draw(spec, 1, word)
    kept = [{block: t.clone() for block, t in side.items()} for side in (a, b)]
    found = move_unit(select_spaces(spec, spaces), a, b, guard=guard)
    assert any(not torch.equal(t, b[block]) for block, t in found.blocks.items())
    for side, before in zip((a, b), kept, strict=True):
        assert all(torch.equal(t, before[block]) for block, t in side.items())
