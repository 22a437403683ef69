"""The net under methods: a bound is never exceeded by the method it belongs to, and what exceeds it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import REACH, Inputs, Size, size_of
from isomerge.fusion.fisher import KroneckerFactors, fisher_kfac
from isomerge.fusion.method_options import Range
from isomerge.fusion.registry import Method, describe, methods
from isomerge.fusion.regmean import InputGram, regmean
from isomerge.merging.fusing import bound_of, check_explained
from isomerge.symmetry.groups.orthogonal import random_orthogonal

ALONE = sorted(name for name, m in methods().items() if not (m.unit or m.forward))
SIZES = st.sampled_from([1e-12, 1e-3, 1.0, 1e3, 1e12])


def test_every_method_says_what_it_can_explain() -> None:
    """The default is for methods of others."""
    assert [name for name, method in methods().items() if method.bound is None] == []


def options_for(method: Method, count: int, draw: Any) -> dict[str, Any]:
    """Numbers that a user may ask for, large ones too; shares stay shares."""
    number = st.floats(-50, 50).filter(lambda x: x == 0 or abs(x) > 1e-3)
    found: dict[str, Any] = {}
    for name, option in method.options.items():
        value = st.booleans() if option.kind is bool else number
        if isinstance(option.values, Range):
            value = st.floats(max(option.values.least, -50), min(option.values.most, 50))
        if name in ("trim", "learning_rate"):
            value = st.floats(0, 1)
        if name == "weight" and method.statistics:
            value = st.floats(0.01, 50)
        if name in ("eps", "epsilon", "tol", "floor", "iterations", "max_iter", "int8_mask") or option.kind is int:
            continue
        if option.kind is str:
            value = st.sampled_from(["sum", "count"])
        found[name] = [draw(value) for _ in range(count)] if option.per_model else draw(value)
    if "epsilon" in method.options and "density" in method.options:  # della's window
        found |= {
            "density": [draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])) for _ in range(count)],
            "epsilon": [0.15] * count,
        }
    return found


def statistics_for(method: Method, shape: tuple[int, int], count: int, rng: torch.Generator) -> Any:
    """Statistics that are nearly singular, each in directions of its own."""

    def singular(n: int) -> torch.Tensor:
        q = random_orthogonal((), n, rng)
        return (q * torch.logspace(-9, 1, n, dtype=torch.float64)) @ q.mT

    out, width = shape
    if method.statistics == "fishers":
        return [10 ** (torch.rand(shape, generator=rng, dtype=torch.float64) * 12 - 9) for _ in range(count)]
    if method.statistics == "grams":
        return [InputGram(singular(width)) for _ in range(count)]
    if method.statistics == "factors":
        return [KroneckerFactors(singular(width), singular(out)) for _ in range(count)]
    return None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.parametrize("name", ALONE)
def test_no_false_alarm(name: str, data: st.DataObject) -> None:
    """Whatever the inputs' sizes, equal or opposite models, zeros, and weights that users ask for, large ones
    too."""
    method, draw = methods()[name], data.draw
    least, most = method.models
    count = draw(st.integers(least, min(most or 4, 4)))
    shape = draw(st.sampled_from([(1, 1), (1, 3), (3, 4), (2, 1)]))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    base = draw(SIZES) * torch.randn(shape, generator=rng, dtype=dtype)
    apart = draw(SIZES)
    tensors = [base + apart * torch.randn(shape, generator=rng, dtype=dtype) for _ in range(count)]
    for k in range(count):
        kind = draw(st.sampled_from(["own", "own", "base", "zero", "opposite", "sparse"]))
        tensors[k] = {"own": tensors[k], "base": base.clone(), "zero": base * 0, "opposite": -tensors[0],
                      "sparse": tensors[k] * (torch.rand(shape, generator=rng) < 0.3)}[kind]  # fmt: skip
    options = options_for(method, count, draw)
    origin = base if method.base == "required" or (method.base == "optional" and draw(st.booleans())) else None
    inputs = Inputs([[t] for t in tensors], None if origin is None else [origin])
    try:
        result = method.fuse(
            tensors, options, base=origin, rng=rng, statistics=statistics_for(method, shape, count, rng), notes=[]
        )
    except IsomergeError:  # weights that sum to zero, directions that cancel
        return
    assert result.shape == torch.Size(shape)
    far = float(result.double().norm()) > 10 * sum(size.norm for size in inputs.each())
    if far and name in (
        "slerp",
        "nuslerp",
        "multislerp",
        "model_stock",
    ):  # of nearly opposite tensors: no false alarm
        return
    check_explained(method, result, inputs, options, "t")


@pytest.mark.parametrize("name", sorted(methods()))
def test_garbage_is_refused(name: str) -> None:
    """NaN, an infinity, one huge entry and a huge norm, by any method with its defaults; what an input is, is
    not."""
    method = methods()[name]
    rng = torch.Generator().manual_seed(0)
    count = max(2, method.models[0]) if method.models[1] is None else method.models[1]
    tensors = [torch.randn(8, 8, generator=rng) for _ in range(count)]
    base = torch.randn(8, 8, generator=rng) if method.base == "required" else None
    options = {"t": 0.5} if "t" in method.options else {}
    inputs = Inputs([[t] for t in tensors], None if base is None else [base])
    check_explained(method, tensors[0], inputs, options, "layer.weight")
    for bad in (float("nan"), float("inf"), 2e4, -2e4):
        one = tensors[0].clone()
        one[3, 3] = bad
        with pytest.raises(IsomergeError, match=rf"tensor layer\.weight .*method {name}"):
            check_explained(method, one, inputs, options, "layer.weight")
    with pytest.raises(IsomergeError, match="norm of"):
        check_explained(method, tensors[0] * 2e4, inputs, options, "layer.weight")


def test_bounds_are_tight() -> None:
    """A sum in place of an average is refused, and so is one entry that is twice the largest."""
    models = [torch.ones(4, 4), torch.ones(4, 4)]
    inputs = Inputs([[t] for t in models])
    linear = methods()["linear"]
    for wrong in (models[0] + models[1], torch.ones(4, 4).index_fill_(0, torch.tensor([0]), -2.0)):
        with pytest.raises(IsomergeError):
            check_explained(linear, wrong, inputs, {}, "t")
    check_explained(linear, models[0] * 100, inputs, {"weight": [60.0, 40.0], "normalize": False}, "t")
    tasks = Inputs([[1.1 * t] for t in models], [models[0]])
    assert bound_of(methods()["task_arithmetic"], tasks, {"lambda": 5.0}).largest == pytest.approx(1 + 5 * 0.2)
    plain = methods()["dare_linear"]
    assert bound_of(plain, tasks, {"density": 0.5, "rescale": False}).largest == pytest.approx(1.2)
    assert bound_of(plain, tasks, {"density": 0.5}).largest == pytest.approx(1 + 2 * 16 * 0.1)


def test_methods_of_others() -> None:
    """Without a bound of their own: a hundred times the inputs, times the numbers that differ from the defaults."""

    def mine(tensors: Any, *, weight: Any = 1.0, eps: float = 1e-9) -> torch.Tensor:
        return tensors[0]

    mine.__annotations__["weight"] = "float"
    method, inputs = describe(mine), Inputs([[torch.ones(2, 2)]])
    assert bound_of(method, inputs, {}).norm == pytest.approx(200)
    assert bound_of(method, inputs, {"weight": 30.0}).norm == pytest.approx(6000)
    assert bound_of(method, inputs, {"weight": 0.5, "eps": 1e-9}).norm == pytest.approx(400)
    own = replace(method, bound=lambda inputs, values: Size(values["weight"], 7.0))
    assert bound_of(own, inputs, {"weight": 3.0}) == Size(3.0, 7.0)


def test_sizes() -> None:
    """In any dtype, of several tensors as of one; what overflows or vanishes in float32 sums too."""
    x = torch.randn(700, 900, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        y = x.to(dtype)
        size = size_of([y[:300], y[300:]])
        assert size.norm == pytest.approx(float(y.double().norm()), rel=1e-4)
        assert size.largest == float(y.double().abs().max())
    for scale in (1e-30, 1e30):
        assert size_of([x * scale]).norm == pytest.approx(float(x.norm()) * scale, rel=1e-4)
    assert size_of([x[:0]]) == Size()


# ------------------------------------------------------- least squares whose minimum is far out


def crossing(gap: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Two models, each sure of one direction; the directions differ by a small angle, so their minimum is far
    out."""
    first, second = torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, gap]).double()
    lines = [x.outer(x) for x in (first, second)]
    return [torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[-1.0, 0.0]]).double()], lines


@pytest.mark.parametrize("gap", [0.5, 1e-2, 1e-4, 1e-6])
def test_nearly_parallel_lines(gap: float) -> None:
    """Exact minima cross 2 / gap away: such a tensor is the average, and is named. With damping it stays near by
    itself."""
    models, lines = crossing(gap)
    for run in (
        lambda notes: regmean(models, weight=[1.0, 1.0], grams=[InputGram(x) for x in lines], alpha=1.0, notes=notes),
        lambda notes: fisher_kfac(models, weight=[1.0, 1.0], damping=0.0, notes=notes,
                                  factors=[KroneckerFactors(x, torch.ones(1, 1).double()) for x in lines]),
    ):  # fmt: skip
        notes: list[str] = []
        found = run(notes)
        assert float(found.norm()) <= REACH
        assert torch.allclose(found, torch.zeros(1, 2).double()) == bool(notes)
        assert bool(notes) == (2 / gap > REACH)
    notes = []
    factors = [KroneckerFactors(x, torch.ones(1, 1).double()) for x in lines]
    assert float(fisher_kfac(models, weight=[1.0, 1.0], factors=factors, notes=notes).norm()) < 3
    assert notes == []
    assert float(regmean(models, weight=[1.0, 1.0], grams=[InputGram(x) for x in lines]).norm()) <= REACH


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_outputs_that_hardly_occur(form: str) -> None:
    """An untied head: the curvature of softmax spans many orders of magnitude, and is blind for shifts of all
    logits."""
    rng = torch.Generator().manual_seed(2)
    models = [torch.randn(64, 16, generator=rng) for _ in range(2)]
    factors = []
    for _ in models:
        p = (torch.randn(64, generator=rng, dtype=torch.float64) * 6).softmax(0)
        x = torch.randn(200, 16, generator=rng, dtype=torch.float64) @ torch.randn(16, 16, generator=rng).double()
        curvature = (p.diag() - p.outer(p)).float().double()
        factors.append(
            KroneckerFactors(x.mT @ x / 200, curvature if form == "full" else curvature.diagonal().clone())
        )
    mean = sum(models) / 2
    spread = float((models[0] - mean).norm())
    notes: list[str] = []
    found = fisher_kfac(models, weight=[1.0, 1.0], factors=factors, notes=notes)
    assert notes == []
    assert 0.1 * spread < float((found - mean).norm()) < 3 * spread
