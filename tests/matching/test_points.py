"""Points in pieces are what they are whole, in either order of memory."""

from __future__ import annotations

import pytest
import torch

from isomerge.matching import points
from isomerge.matching.points import Points, exact_distances, in_groups


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces of every tensor, the last one shorter."""
    monkeypatch.setattr(points, "PIECE", 100)


def drawn(seed: int, rows: bool) -> torch.Tensor:
    """37 points of 23 features, which lie together in rows, or apart."""
    x = torch.randn(37, 23, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x if rows else x.mT.contiguous().mT


@pytest.mark.parametrize("rows", [True, False])
def test_exact_distances(rows: bool) -> None:
    """The least over the sign of what signs act on, which is one for all of these; inputs are left as they were."""
    one, two = (Points((drawn(k, rows),), (drawn(k + 1, rows), drawn(k + 2, not rows))) for k in (0, 10))
    before = [x.clone() for x in (*one.parts, *two.parts)]
    pairs = torch.randint(0, 37, (37,), generator=torch.Generator().manual_seed(3))
    found, sign = exact_distances(one, two, pairs)
    fixed = (one.fixed[0][pairs] - two.fixed[0]).square().sum(1)
    signed = [
        sum((x[pairs] - s * y).square().sum(1) for x, y in zip(one.signed, two.signed, strict=True))
        for s in (1, -1)
    ]
    assert torch.allclose(found, fixed + torch.minimum(*signed), rtol=1e-12)
    assert torch.equal(sign, torch.where(signed[1] < signed[0], -1.0, 1.0).double())
    assert set(sign.tolist()) == {1.0, -1.0}
    assert all(torch.equal(x, y) for x, y in zip(before, (*one.parts, *two.parts), strict=True))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("directions", [1, 4, 23])
def test_groups_of_features(rows: bool, directions: int) -> None:
    """Every direction has a group of its own, of one size and norm one; the rest is left out."""
    x = drawn(1, rows)
    basis = in_groups(torch.eye(23, dtype=torch.float64), directions)
    assert torch.allclose(basis.mT @ basis, torch.eye(directions, dtype=torch.float64))
    assert torch.allclose(in_groups(x, directions), x @ basis, rtol=1e-12)
