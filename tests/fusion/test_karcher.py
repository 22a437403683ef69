"""Means on the sphere: karcher against brute force, multislerp against its own tangent step."""

from __future__ import annotations

import math

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.fusion.inner_products import combination, inner_products
from isomerge.fusion.karcher import karcher, karcher_coefficients
from isomerge.fusion.multislerp import multislerp
from isomerge.fusion.slerp import slerp


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def around(count: int, n: int, spread: float) -> list[torch.Tensor]:
    """Vectors around a common direction."""
    centre = normal(n, seed=100)
    return [centre + spread * normal(n, seed=s) for s in range(count)]


def squared_angles(x: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """What a Karcher mean minimises."""
    return torch.acos((units @ (x / x.norm())).clamp(-1, 1)).square().sum()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_least_sum_of_squared_angles(count: int) -> None:
    """Minimised by gradient over the whole space, from other starts, not over coefficients."""
    models = [5 * m / m.norm() for m in around(count, 6, 0.4)]
    units = torch.stack([m / m.norm() for m in models])
    found = karcher(models, max_iter=100, tol=1e-9)
    assert float(found.norm()) == pytest.approx(5)
    x = units.sum(0) + 0.1 * normal(6, seed=7)
    for _ in range(400):  # steps of a quarter of the inverse curvature: the error falls by a constant factor
        x = (x / x.norm()).requires_grad_()
        (slope,) = torch.autograd.grad(squared_angles(x, units), x)
        x = x.detach() - slope / (8 * count)
    best = x / x.norm()
    assert torch.allclose(found / 5, best, atol=1e-5)
    assert float(squared_angles(found, units)) <= float(squared_angles(best, units)) + 1e-9


def test_two_models_meet_halfway() -> None:
    """The mean of two is the middle of their arc, at the mean length."""
    a, b = around(2, 8, 0.8)
    found = karcher([a, 3 * b], max_iter=50, tol=1e-10)
    middle = slerp([b / b.norm()], a / a.norm(), t=0.5)
    assert torch.allclose(found, (float(a.norm()) + 3 * float(b.norm())) / 2 * middle)


def test_zeros_and_opposites() -> None:
    """Zeros count for the length alone; opposite vectors have no mean and the first one's direction is kept."""
    a, b = around(2, 7, 0.3)
    zero = torch.zeros(7, dtype=torch.float64)
    assert torch.allclose(karcher([a, zero, b]), karcher([a, b]) * 2 / 3)
    assert not karcher([zero, zero]).any()
    assert torch.allclose(karcher([a, -a]), a)
    assert torch.allclose(karcher([a, a, a]), a)
    assert torch.allclose(karcher([a, 2 * a]), 1.5 * a)
    assert torch.equal(karcher([a]), a)


def test_few_steps() -> None:
    """No step is the normalised sum of directions; steps lower the sum of squared angles."""
    units = torch.stack([m / m.norm() for m in around(4, 5, 1.5)])
    cosines = units @ units.T
    start = karcher_coefficients(cosines, 0, 1e-9) @ units
    assert torch.allclose(start, units.sum(0) / units.sum(0).norm())
    values = [float(squared_angles(karcher_coefficients(cosines, k, 1e-12) @ units, units)) for k in range(6)]
    assert values == sorted(values, reverse=True)
    assert values[1] < values[0] - 1e-3


@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_multislerp_with_its_tangent_step(based: bool, normalize: bool) -> None:
    """The published steps, the tangent one included, which is zero."""
    models = [m.reshape(4, 5) for m in around(4, 20, 0.7)]
    base = normal(4, 5, seed=50) if based else None
    weight, eps = [1.0, 0.2, 0.7, 2.0], 1e-8
    w = torch.tensor(weight, dtype=torch.float64)
    w = w / w.sum() if normalize else w
    x = torch.stack([(m if base is None else m - base).flatten() for m in models])
    norms = x.norm(dim=1)
    units = x / (norms[:, None] + eps)
    mean = (w[:, None] * units).sum(0)
    mean /= mean.norm()
    tangent = (w[:, None] * (units - (units @ mean)[:, None] * mean)).sum(0)
    assert float(tangent.norm()) < 1e-14
    angle = tangent.norm() + eps
    expected = (mean * angle.cos() + tangent * angle.sin() / angle) * (w * norms).sum()
    expected = expected.reshape(4, 5) if base is None else expected.reshape(4, 5) + base
    found = multislerp(models, base, weight=weight, normalize_weights=normalize, eps=eps)
    assert torch.allclose(found, expected)


def test_multislerp_where_directions_cancel() -> None:
    """Two are averaged; three are refused; nothing learned by anybody is no error."""
    a = normal(6, seed=1)
    given = {"normalize_weights": True, "eps": 1e-8}
    assert torch.allclose(multislerp([a, -3 * a], weight=[1.0, 1.0], **given), -a)
    with pytest.raises(IsomergeError, match="the weighted directions of the models cancel"):
        multislerp([a, a, -a], weight=[1.0, 1.0, 2.0], **given)
    assert torch.allclose(multislerp([a, a, a], a, weight=[1.0, 1.0, 1.0], **given), a)
    with pytest.raises(IsomergeError, match="the weights sum to zero"):
        multislerp([a, 2 * a], weight=[1.0, -1.0], **given)
    assert torch.equal(multislerp([a], weight=[3.0], **given), a)


@pytest.mark.parametrize("shape", [(1, 100), (5, 7), (40, 3), (3, 20)], ids=str)
def test_inner_products_in_pieces(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns beyond one piece; an origin; equal float32 tensors make a singular Gram."""
    monkeypatch.setattr("isomerge.fusion.inner_products.PIECE", 17)
    a, b = (normal(*shape, seed=s).float() for s in (0, 1))
    gram = inner_products([a, b, a], b)
    x = torch.stack([t.double() - b.double() for t in (a, b, a)], 1)
    assert torch.allclose(gram, x @ x.mT)
    assert math.isclose(float(gram[0, 0, 0]), float(gram[0, 0, 2]), rel_tol=1e-12)
    assert torch.allclose(combination([a, b], [2.0, -1.0], b), b + 2 * (a - b), atol=1e-5)
