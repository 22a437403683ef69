"""Selections against sorting, at ties and at every size; random masks against their probabilities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.fusion.breadcrumbs import breadcrumbs, middle
from isomerge.fusion.trimming import Masked, Sizes, lowest, random_entries, ranked_entries

# few values, so that most draws have ties at the threshold
VALUES = st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 0.5]), min_size=1, max_size=12)


def rng(seed: int = 0) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


@given(VALUES, st.integers(-1, 13))
def test_lowest_is_a_stable_sort(values: list[float], count: int) -> None:
    """The first entries of a stable sort, and no others."""
    x = torch.tensor(values)
    expected = torch.zeros(len(values), dtype=torch.bool)
    expected[x.argsort(stable=True)[: max(count, 0)]] = True
    assert torch.equal(lowest(x, count), expected)


@given(VALUES, st.floats(0, 1), st.floats(0, 1))
def test_middle_by_sorting(values: list[float], density: float, gamma: float) -> None:
    """Outliers go first; the density is kept also where that leaves too few."""
    x, n = torch.tensor(values), len(values)
    order = sorted(range(n), key=lambda i: (abs(values[i]), i))
    count, outliers = int(density * n), int(gamma * n)
    end = max(n - outliers, count)
    kept = set(order[end - count : end]) if density < 1 else set(range(n))
    (part,) = middle([x], torch.zeros(n), density=[density], gamma=[gamma], rescale=False)
    found = x if part is None else torch.cat([part(piece, torch.zeros(len(piece))) for piece in x.split(3)])
    assert found.tolist() == [v if i in kept else 0 for i, v in enumerate(values)]


def test_random_masks_have_their_density() -> None:
    """Means within five standard deviations; nothing at 0; masks of one generator differ."""
    x, draws = torch.zeros(200, 100), rng()
    for density in (0.1, 0.5, 0.9):
        mean = float(random_entries(x, density, draws).float().mean())
        assert abs(mean - density) < 5 * (density * (1 - density) / x.numel()) ** 0.5
    assert not random_entries(x, 0.0, draws).any()
    assert not torch.equal(random_entries(x, 0.5, draws), random_entries(x, 0.5, draws))


def test_probabilities_rise_with_the_rank() -> None:
    """Over many draws every entry of a row is kept as often as its rank says, rows apart."""
    rows = torch.tensor([[0.1, -4.0, 0.3, 2.0, -1.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    draws, kept = rng(1), torch.zeros(2, 5)
    for _ in range(4000):
        kept += ranked_entries(rows, 0.4, 0.2, draws)
    expected = torch.tensor([[0.2, 0.6, 0.3, 0.5, 0.4], [0.6, 0.5, 0.4, 0.3, 0.2]])
    assert torch.allclose(kept / 4000, expected, atol=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 1), (2, 3, 4)], ids=str)
def test_ranks_of_any_shape(shape: tuple[int, ...]) -> None:
    """Rows of one entry are kept with the density itself; others keep their mean."""
    x, draws = torch.randn(shape, generator=rng(2)), rng(3)
    kept = sum(ranked_entries(x, 0.5, 0.3, draws).float() for _ in range(2000)) / 2000
    assert kept.shape == x.shape
    assert abs(float(kept.mean()) - 0.5) < 0.06


def test_ranks_of_a_vector_are_one_row() -> None:
    """The largest entry of a vector is kept nearly always with a wide window, the smallest hardly ever."""
    x, draws = torch.tensor([3.0, 1.0, 2.0]), rng(4)
    kept = sum(ranked_entries(x, 0.5, 0.49, draws).float() for _ in range(500))
    assert kept[0] > 480
    assert kept[1] < 20
    assert 180 < kept[2] < 320


def test_rescaling() -> None:
    """The sum of magnitudes comes back; nothing is divided by nothing."""
    x = torch.tensor([1.0, -2.0, 3.0, -4.0])
    mask, none = torch.tensor([True, False, False, True]), torch.zeros(4, dtype=torch.bool)

    def sparse(x: torch.Tensor, mask: torch.Tensor, rescale: bool) -> list[float]:
        zeros = torch.zeros_like(x)
        return Masked(mask, Sizes(x, zeros, x.dtype) if rescale else None)(x, zeros).tolist()

    assert sparse(x, mask, False) == [1.0, 0.0, 0.0, -4.0]
    assert sparse(x, mask, True) == [2.0, 0.0, 0.0, -8.0]
    assert sparse(x, none, True) == [0.0] * 4
    assert sparse(1e-9 * x, mask, True) == (1e-9 * x * mask).tolist()


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(1, 1500), min_size=1, max_size=3))
def test_draws_are_those_of_torch(seed: int, counts: list[int]) -> None:
    """Bit for bit, and the generator goes on as if torch had drawn."""
    ours, theirs = rng(seed), rng(seed)
    for count in counts:
        for density in (0.5, 0.1):
            found = random_entries(torch.empty(count), density, ours)
            assert torch.equal(found, torch.rand(count, generator=theirs) < density)
    assert torch.equal(torch.rand(700, generator=ours), torch.rand(700, generator=theirs))


def test_shares_are_checked() -> None:
    """A share outside of [0, 1], whoever calls a method, and a window outside of (0, 1)."""
    zeros = torch.zeros(3)
    for value in (0, 0.5, 1):
        assert torch.equal(breadcrumbs([zeros], zeros, weight=[1.0], density=[value], gamma=[value]), zeros)
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(IsomergeError, match=r"`gamma` is .*: give a number from 0 to 1"):
            breadcrumbs([zeros], zeros, weight=[1.0], density=[0.5], gamma=[value])
    for density, epsilon in ((0.1, 0.1), (0.9, 0.15)):
        with pytest.raises(IsomergeError, match=r"`epsilon` is .*: choose a smaller epsilon"):
            ranked_entries(torch.ones(3), density, epsilon, rng())
