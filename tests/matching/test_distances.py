"""Squared distances and norms, in pieces, against float64."""

from __future__ import annotations

import pytest
import torch

from isomerge.matching.distances import squared_distance, squared_distance_and_norm, squared_norm
from isomerge.pieces import PIECE


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-12), (torch.bfloat16, 2e-5), (torch.float16, 2e-5)],
)
@pytest.mark.parametrize("shape", [(), (7,), (2, PIECE + 5)])
def test_squares_of_any_dtype(dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]) -> None:
    """Exact sums and differences for full precision; sums of float32 for half: a few thousand in each of its lanes
    round by 1e-5."""
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for _ in range(2))
    gap = float((a.double() - b.double()).square().sum())
    norm = float(a.double().square().sum())
    assert squared_distance(a, b) == pytest.approx(gap, rel=tolerance)
    assert squared_norm(a) == pytest.approx(norm, rel=tolerance)
    assert squared_distance_and_norm(a, b) == pytest.approx((gap, norm), rel=tolerance)


def test_large_values_of_half_precision_are_summed_wide() -> None:
    """Squares beyond float32 are no infinities."""
    x = torch.full((64,), 3e38, dtype=torch.bfloat16)
    assert squared_norm(x) == pytest.approx(64 * float(x[0]) ** 2, rel=1e-6)
    assert squared_distance_and_norm(x, torch.zeros_like(x))[0] == squared_norm(x)


def test_integers_have_a_distance_and_no_norm() -> None:
    """Positions and hash multipliers are no weights: their size says nothing of how large a distance is; that they
    differ does."""
    a, b = torch.tensor([3, 4 << 40]), torch.tensor([3, (4 << 40) + 2])
    assert squared_norm(a) == 0
    assert squared_distance_and_norm(a, b) == (4.0, 0.0)
