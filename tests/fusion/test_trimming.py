"""The threshold of a task vector against sorting: with ties, at every rank, and where the sample misleads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.fusion import trimming
from isomerge.fusion.trimming import Sizes, Trim, rank_of

# few values, so that most draws have ties at the threshold
VALUES = st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 0.5, float("inf")]), min_size=1, max_size=40)


def sizes_of(x: torch.Tensor) -> Sizes:
    """Of a task vector over a base of zeros."""
    return Sizes(x, torch.zeros_like(x), torch.float32)


@pytest.fixture(params=[(1, 1 << 16), (0, 1), (0, 2), (0, 5)], ids=["whole", "of one", "of two", "of five"])
def sampled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Search whole vectors, or between two values of samples as small as they can be."""
    with pytest.MonkeyPatch.context() as patch:
        small, count = request.param
        patch.setattr(trimming, "WHOLE", 1 << 20 if small else 0)
        patch.setattr(trimming, "SAMPLE", count)
        patch.setattr(trimming, "SIGMAS", 0.3)  # so narrow that the sample often misleads
        patch.setattr(trimming, "PIECE", 3)
        yield


@pytest.mark.usefixtures("sampled")
def test_every_rank() -> None:
    """Value and counts are those of the sorted list."""

    @given(VALUES, st.data())
    def check(values: list[float], data: st.DataObject) -> None:
        k = data.draw(st.integers(1, len(values)))
        found, ordered = rank_of(sizes_of(torch.tensor(values)), k), sorted(map(abs, values))
        value = ordered[k - 1]
        assert (found.value, found.less, found.equal) == (value, ordered.index(value), ordered.count(value))

    check()


@pytest.mark.usefixtures("sampled")
def test_largest_by_sorting() -> None:
    """At least one entry above density zero; of equal magnitudes the earlier; rescaled to the sum of all."""

    @given(st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 0.5]), min_size=1, max_size=12), st.floats(0, 1))
    def check(values: list[float], density: float) -> None:
        x = torch.tensor(values)
        count = max(1, int(density * len(values))) if density else 0
        order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
        expected = torch.zeros_like(x)
        expected[order[:count]] = x[order[:count]]
        assert torch.equal(trimmed(x, density), expected)
        scaled, kept = trimmed(x, density, rescale=True), expected.abs().sum()
        assert torch.allclose(scaled, expected * (x.abs().sum() / kept if kept else 1.0))

    check()


def trimmed(x: torch.Tensor, density: float, *, rescale: bool = False) -> torch.Tensor:
    """A trimmed task vector, in pieces of two."""
    trim = Trim(sizes_of(x), density, rescale=rescale)
    return torch.cat([trim(piece.clone()) for piece in x.split(2)])


def test_a_large_vector_is_searched_in_a_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few entries in a hundred are looked at closely, and the threshold is the sorted one."""
    monkeypatch.setattr(trimming, "WHOLE", 1 << 20)
    x = torch.randn((1 << 20) + 17, generator=torch.Generator().manual_seed(0)).bfloat16()
    searched = []
    found_in = trimming._searched
    monkeypatch.setattr(trimming, "_searched", lambda s, k: searched.append(len(s)) or found_in(s, k))
    for share in (0.1, 0.5, 0.999):
        k = int(share * len(x))
        assert rank_of(sizes_of(x), k).value == float(x.float().abs().sort().values[k - 1])
    assert max(searched, default=0) < 0.1 * len(x)


def test_a_misleading_vector_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large where the sample looks, small elsewhere: the whole vector is searched."""
    n = 1 << 21
    x = torch.rand(n, generator=torch.Generator().manual_seed(1))
    x[:: n // trimming.SAMPLE] += 10
    monkeypatch.setattr(trimming, "WHOLE", 1 << 20)
    searched = []
    found_in = trimming._searched
    monkeypatch.setattr(trimming, "_searched", lambda s, k: searched.append(len(s)) or found_in(s, k))
    assert rank_of(sizes_of(x), n // 2).value == float(x.sort().values[n // 2 - 1])
    assert searched == [n]
