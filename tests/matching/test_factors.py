"""The best factor whose square the other side is divided by, against the roots of its polynomial."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isomerge.matching.factors import Factors


def exact(alpha: float, beta: float, plus: float, minus: float) -> float:
    """The least cost over the positive roots of ``alpha s^6 - plus s^5 + 2 minus s^2 - 2 beta``."""
    roots = np.roots([alpha, -plus, 0, 0, 2 * minus, 0, -2 * beta])
    real = roots[(abs(roots.imag) < 1e-6 * np.maximum(1, abs(roots))) & (roots.real > 0)].real
    return min(alpha * s**2 - 2 * plus * s + beta / s**4 - 2 * minus / s**2 for s in real)


@pytest.mark.parametrize("opposed", [False, True])
def test_the_global_optimum(opposed: bool) -> None:
    rng = torch.Generator().manual_seed(5)
    sides = torch.randn(4, 300, 3, generator=rng, dtype=torch.float64)
    x1, y1, x2, y2 = sides * (torch.rand(4, 300, 1, generator=rng, dtype=torch.float64) * 6 - 3).exp()
    y1, y2 = (y1.abs(), -y2.abs()) if opposed else (y1, y2)
    traces = [(a * b).sum(-1) for a, b in ((x1, x1), (y1, y1), (x1, x2), (y1, y2))]
    size = (x2 * x2).sum(-1) + (y2 * y2).sum(-1)
    for at, value in enumerate(Factors.of("SquaredScale").value(*traces)):
        best = exact(*(float(t[at]) for t in traces))
        assert abs(float(value) - best) < 1e-12 * (float(size[at]) + abs(best))


def test_a_planted_factor() -> None:
    x, y = torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    s = torch.linspace(0.2, 5, 7, dtype=torch.float64)
    moved = x * s[:, None], y / s[:, None] ** 2
    traces = [(a * b).sum(-1) for a, b in ((x, x), (y, y), (x, moved[0]), (y, moved[1]))]
    torch.testing.assert_close(Factors.of("SquaredScale").best(*traces), s)
