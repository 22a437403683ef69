"""Fisher merging against its closed forms: coordinate by coordinate, and as one dense linear system."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.fisher import KroneckerFactors, fisher, fisher_kfac
from isomerge.symmetry.groups.orthogonal import random_orthogonal

WEIGHTS = [[1.0, 1.0, 1.0], [3.0, 0.5, 1.0], [2.0, 0.0, 1.0]]


def drawn(seed: int, shape: tuple[int, ...] = (4, 6), models: int = 3) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors and positive Fishers over four orders of magnitude, float64."""
    rng = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(models)]
    return tensors, [torch.rand(shape, generator=rng, dtype=torch.float64) ** 4 for _ in range(models)]


def positive(n: int, rng: torch.Generator, rank: int | None = None) -> Tensor:
    """A random positive matrix of some rank and condition 100."""
    q = random_orthogonal((), n, rng)
    values = torch.logspace(-1, 1, n, dtype=torch.float64)
    values[: n - (rank or n)] = 0
    return (q * values) @ q.mT


def factors_of(seed: int, out: int, width: int, models: int = 3, rank: int | None = None) -> list[KroneckerFactors]:
    """Random factors."""
    rng = torch.Generator().manual_seed(seed)
    return [KroneckerFactors(positive(width, rng, rank), positive(out, rng)) for _ in range(models)]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_diagonal_average(weight: list[float]) -> None:
    """sum w F theta / sum w F, by a loop over coordinates; a common factor of the Fishers changes nothing."""
    tensors, fishers = drawn(0)
    found = fisher(tensors, weight=weight, fishers=fishers, floor=0.0)
    for place in [(0, 0), (1, 5), (3, 2), (2, 2)]:
        precisions = [w * float(f[place]) for w, f in zip(weight, fishers, strict=True)]
        wanted = sum(p * float(t[place]) for p, t in zip(precisions, tensors, strict=True)) / sum(precisions)
        assert abs(float(found[place]) - wanted) < 1e-12
    tiny = fisher(tensors, weight=weight, fishers=[f * 1e-18 for f in fishers], floor=1e-6)
    assert torch.allclose(tiny, fisher(tensors, weight=weight, fishers=fishers, floor=1e-6), atol=1e-12)


def test_where_nobody_is_sure_it_is_the_average() -> None:
    """Zeros everywhere, zeros in places, numbers below the floor; and a missing file."""
    tensors, fishers = drawn(1)
    average = (tensors[0] + 2 * tensors[1] + tensors[2]) / 4
    weight = [1.0, 2.0, 1.0]
    zeros = [torch.zeros_like(f) for f in fishers]
    for given in (zeros, [fishers[0], None, fishers[2]]):
        assert torch.allclose(fisher(tensors, weight=weight, fishers=given, floor=1e-6), average)
    for k, f in enumerate(fishers):
        f[1] = 10.0 ** -(20 + k)
    found = fisher(tensors, weight=weight, fishers=fishers, floor=1e-6)
    assert torch.allclose(found[1], average[1])
    assert not torch.allclose(found[2], average[2], atol=0.01)
    for f in fishers[1:]:  # and one that is sure alone has its way
        f[3] = 0
    fishers[0][3] = 1
    found = fisher(tensors, weight=weight, fishers=fishers, floor=1e-6)
    assert torch.allclose(found[3], tensors[0][3], atol=1e-4)
    # sure models of weight zero, others blind, and no floor
    assert bool(fisher(tensors, weight=[0.0, 1.0, 1.0], fishers=fishers, floor=0.0).isfinite().all())


def test_arguments_are_checked_and_kept() -> None:
    """Inputs are not changed, dtypes are kept, weights must make sense."""
    tensors, fishers = drawn(2)
    small, before = [t.float() for t in tensors], [t.float() for t in tensors]
    found = fisher(small, weight=[1.0] * 3, fishers=fishers, floor=1e-6)
    assert found.dtype == torch.float32
    assert all(torch.equal(x, y) for x, y in zip(small, before, strict=True))
    for weight, said in (([1.0, -1.0, 1.0], "of at least 0"), ([0.0] * 3, "one positive")):
        with pytest.raises(IsomergeError, match=said):
            fisher(tensors, weight=weight, fishers=fishers, floor=1e-6)
        with pytest.raises(IsomergeError, match=said):
            fisher_kfac(tensors, weight=weight, factors=[None] * 3, damping=0.1, iterations=5)
    with pytest.raises(IsomergeError, match="`iterations` is 0"):
        fisher_kfac(tensors, weight=[1.0] * 3, factors=[None] * 3, damping=0.1, iterations=0)


def dense(tensors: list[Tensor], factors: list[KroneckerFactors], weight: list[float]) -> Tensor:
    """The minimum by a dense solve of sum w (G (x) A) vec W = sum w (G (x) A) vec W_k."""
    n = tensors[0].numel()
    left, right = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for t, f, w in zip(tensors, factors, weight, strict=True):
        g = torch.diag(f.outputs) if f.outputs.ndim == 1 else f.outputs
        block = w * torch.kron(g, f.inputs)
        left, right = left + block, right + block @ t.flatten()
    return torch.linalg.solve(left, right).reshape(tensors[0].shape)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_factored_average_solves_its_system(weight: list[float]) -> None:
    """As a dense solve does, for Linear and Conv1D, with matrices and with diagonals of G; few steps are enough."""
    tensors, _ = drawn(3)
    factors = factors_of(0, 4, 6)
    diagonals = [KroneckerFactors(f.inputs, f.outputs.diagonal()) for f in factors]
    turned = [KroneckerFactors(f.inputs, f.outputs, 0) for f in factors]
    for given in (factors, diagonals):
        found = fisher_kfac(tensors, weight=weight, factors=given, damping=0.0, iterations=100)
        assert torch.allclose(found, dense(tensors, given, weight), atol=1e-6)
    found = fisher_kfac([t.mT for t in tensors], weight=weight, factors=turned, damping=0.0, iterations=100)
    assert torch.allclose(found.mT, dense(tensors, factors, weight), atol=1e-6)
    shared = [KroneckerFactors(f.inputs, factors[0].outputs) for f in factors]
    once = fisher_kfac(tensors, weight=weight, factors=shared, damping=0.0, iterations=1)
    assert torch.allclose(once, dense(tensors, shared, weight), atol=1e-9)


@pytest.mark.parametrize("damping", [0.1, 0.5, 1.0])
def test_damping_draws_towards_the_average(damping: float) -> None:
    """Factors are mixed with their mean eigenvalue, then Fishers with the pooled one; at 1 all are equal."""
    tensors, _ = drawn(7)
    given, weight = factors_of(4, 4, 6), [2.0, 1.0, 1.0]
    shares = [0.5, 0.25, 0.25]

    def level(x: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(x)
        return (vectors * ((1 - damping) * values + damping * values.mean())) @ vectors.mT

    factors = [KroneckerFactors(level(f.inputs), level(f.outputs)) for f in given]
    pooled = torch.kron(
        sum(s * f.outputs for s, f in zip(shares, factors, strict=True)),
        sum(s * f.inputs for s, f in zip(shares, factors, strict=True)),
    )
    mixed = [(1 - damping) * torch.kron(f.outputs, f.inputs) + damping * pooled for f in factors]
    right = sum(s * (m @ t.flatten()) for s, m, t in zip(shares, mixed, tensors, strict=True))
    wanted = torch.linalg.solve(sum(s * m for s, m in zip(shares, mixed, strict=True)), right).reshape(4, 6)
    found = fisher_kfac(tensors, weight=weight, factors=given, damping=damping, iterations=100)
    assert torch.allclose(found, wanted, atol=1e-6)
    diagonals = [KroneckerFactors(f.inputs, f.outputs.diagonal()) for f in given]
    full = [KroneckerFactors(f.inputs, f.outputs.diagonal().diag()) for f in given]
    one, other = (fisher_kfac(tensors, weight=weight, factors=f, damping=damping) for f in (diagonals, full))
    assert torch.allclose(one, other, atol=1e-6)
    if damping == 1:
        average = sum(s * t for s, t in zip(shares, tensors, strict=True))
        assert torch.allclose(found, average, atol=1e-12)
    with pytest.raises(IsomergeError, match="`damping` is 2"):
        fisher_kfac(tensors, weight=weight, factors=factors, damping=2.0, iterations=1)


def test_the_factored_average_moves_with_its_models() -> None:
    """W -> H W R with A -> R^-1 A R^-T and G -> H^-T G H^-1 for every invertible H and R."""
    tensors, _ = drawn(4)
    factors, rng = factors_of(1, 4, 6), torch.Generator().manual_seed(9)
    h, r = (random_orthogonal((), n, rng) @ torch.diag(torch.rand(n, generator=rng, dtype=torch.float64) + 0.5)
            for n in (4, 6))  # fmt: skip
    hi, ri = torch.linalg.inv(h), torch.linalg.inv(r)
    moved = [KroneckerFactors(ri @ f.inputs @ ri.mT, hi.mT @ f.outputs @ hi) for f in factors]
    plain = fisher_kfac(tensors, weight=[1.0] * 3, factors=factors, damping=0.0, iterations=100)
    found = fisher_kfac([h @ t @ r for t in tensors], weight=[1.0] * 3, factors=moved, damping=0.0, iterations=100)
    assert torch.allclose(hi @ found @ ri, plain, atol=1e-6)


def test_what_no_factor_sees_stays_the_average() -> None:
    """Inputs of rank two in six dimensions, the same for all: only their plane is moved."""
    tensors, _ = drawn(5)
    average = sum(tensors) / 3
    rng = torch.Generator().manual_seed(3)
    blind = positive(6, rng, rank=2)
    factors = [
        KroneckerFactors(blind * s, f.outputs) for s, f in zip((1.0, 2.0, 5.0), factors_of(2, 4, 6), strict=True)
    ]
    found = fisher_kfac(tensors, weight=[1.0] * 3, factors=factors, damping=0.0, iterations=100)
    seen = torch.linalg.svd(blind)[2]
    assert torch.allclose(found @ seen[2:].mT, average @ seen[2:].mT, atol=1e-9)
    assert not torch.allclose(found @ seen[:2].mT, average @ seen[:2].mT, atol=0.1)
    # in the plane the inputs are known, so that the problem is one of its own
    inside = [KroneckerFactors(seen[:2] @ f.inputs @ seen[:2].mT, f.outputs) for f in factors]
    wanted = dense([t @ seen[:2].mT for t in tensors], inside, [1.0] * 3)
    assert torch.allclose(found @ seen[:2].mT, wanted, atol=1e-6)


def test_other_tensors_are_averaged() -> None:
    """Where a model has no factors."""
    tensors, _ = drawn(6)
    one = [*factors_of(3, 4, 6)[:2], None]
    average = (tensors[0] + 2 * tensors[1] + tensors[2]) / 4
    assert torch.allclose(
        fisher_kfac(tensors, weight=[1.0, 2.0, 1.0], factors=one, damping=0.1, iterations=9), average
    )
