"""The threshold of a task vector against sorting: with ties, at every rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.fusion.ties import largest
from isomerge.fusion.trimming import Sizes, ranks_of

# few values, so that most draws have ties at the threshold
VALUES = st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 0.5, float("inf")]), min_size=1, max_size=40)


def sizes_of(x: torch.Tensor, wide: torch.dtype = torch.float32) -> Sizes:
    """Of a task vector over a base of zeros."""
    return Sizes(x.to(wide), torch.zeros_like(x, dtype=wide), wide)


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def wide(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Counted by bits, or searched whole; in pieces of three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isomerge.passes.PIECE", 3)
        yield request.param


def test_every_rank(wide: torch.dtype) -> None:
    """Value and counts are those of the sorted list."""

    @given(VALUES, st.data())
    def check(values: list[float], data: st.DataObject) -> None:
        k = data.draw(st.integers(1, len(values)))
        ks, ordered = [k, len(values)], sorted(map(abs, values))
        for k, found in zip(ks, ranks_of(sizes_of(torch.tensor(values), wide), ks), strict=True):
            value = ordered[k - 1]
            assert (found.value, found.less, found.equal) == (value, ordered.index(value), ordered.count(value))

    check()


def test_largest_by_sorting(wide: torch.dtype) -> None:
    """At least one entry above density zero; of equal magnitudes the earlier; rescaled to the sum of all."""

    @given(st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 0.5]), min_size=1, max_size=12), st.floats(0, 1))
    def check(values: list[float], density: float) -> None:
        x = torch.tensor(values, dtype=wide)
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
    (trim,) = largest([x], torch.zeros_like(x), density=[density], rescale=rescale)
    return x if trim is None else torch.cat([trim(piece, torch.zeros_like(piece)) for piece in x.split(2)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_thresholds_of_a_large_vector(dtype: torch.dtype) -> None:
    """Of half precision, whose magnitudes are often equal, and of full precision: the sorted one."""
    x = torch.randn((1 << 18) + 17, generator=torch.Generator().manual_seed(0)).to(dtype)
    base = torch.randn(len(x), generator=torch.Generator().manual_seed(1)).to(dtype) / 8
    ordered = (x.float() - base.float()).abs().sort().values
    for share in (0.0, 0.1, 0.5, 0.999, 1.0):
        k = max(1, int(share * len(x)))
        (rank,) = ranks_of(Sizes(x, base, torch.float32), [k])
        assert rank.value == float(ordered[k - 1])
        assert rank.less == int((ordered < rank.value).sum())
        assert rank.equal == int((ordered == rank.value).sum())
