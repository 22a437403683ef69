"""Assignments: whatever is returned is optimal, however the profits are made to fool the proof."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from isomerge.symmetry.groups import assignment
from isomerge.symmetry.groups.assignment import assign, distinct_best, optimal_columns

KINDS = ["unrelated", "related", "ties", "twice", "near", "norms", "identity", "constant", "chain"]


def drawn(seed: int, n: int, kind: str, dtype: type = np.float64) -> np.ndarray:
    """Profits [n, n], made awkward."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, n, 6))
    if kind in ("related", "norms"):
        y = x[rng.permutation(n)] + 0.3 * y
    if kind == "norms":  # rows and columns of very different sizes
        x, y = x * np.logspace(-3, 3, n)[:, None], y * np.logspace(3, -3, n)[:, None]
    p = x @ y.T
    if kind == "ties":
        p = rng.integers(0, 3, (n, n)).astype(float)
    if kind == "twice":
        p[n // 2 :], p[:, n // 2 :] = p[: n - n // 2], p[:, : n - n // 2]
    if kind == "near":  # what float32 cannot tell apart
        p = 1 + 1e-7 * rng.standard_normal((n, n))
    if kind == "identity":
        p = p - p.min() + np.diag(np.full(n, 100.0))
    if kind == "constant":
        p = np.full((n, n), -3.0)
    if kind == "chain":  # every row is a little better one column on, and the last has nothing left
        p = np.eye(n) + 1.01 * np.eye(n, k=1)
    return p.astype(dtype)


def total(p: np.ndarray, columns: np.ndarray) -> float:
    """The sum of profits."""
    return float(p[np.arange(len(p)), columns].astype(np.float64).sum())


def best(p: np.ndarray) -> float:
    """The largest sum that there is."""
    return total(p, linear_sum_assignment(p, maximize=True)[1])


def slack(p: np.ndarray) -> float:
    """What rounding of sums in float64 may lose."""
    return 1e-13 * len(p) * float(np.abs(p).max())


@given(
    st.integers(0, 10_000), st.integers(1, 40), st.sampled_from(KINDS), st.sampled_from([np.float32, np.float64])
)
@settings(deadline=None, max_examples=200)
def test_whatever_is_returned_is_optimal(seed: int, n: int, kind: str, dtype: type) -> None:
    """The proof by itself, and the whole, without an auction and with one; rows in blocks of 7."""
    p = drawn(seed, n, kind, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "ROWS", 7)
        answers = [optimal_columns(p), distinct_best(p)]
        patch.setattr(assignment, "MANY", 2)
        answers.append(optimal_columns(p))
    for found in answers:
        if found is not None:
            assert sorted(found.tolist()) == list(range(n))
            assert total(p, found) >= best(p) - slack(p)


@pytest.mark.parametrize("kind", ["unrelated", "ties", "norms", "near", "chain"])
def test_no_prices_can_fool_the_solver(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random ones of the profits' size instead of an auction's: the optimum all the same."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(assignment, "MANY", 2)
    monkeypatch.setattr(assignment, "distinct_best", lambda p: None)
    monkeypatch.setattr(
        assignment, "auction_prices", lambda p: (np.abs(p).max() * rng.standard_normal(len(p))).astype(np.float32)
    )
    for seed in range(10):
        p = drawn(seed, 30, kind)
        assert total(p, optimal_columns(p)) >= best(p) - slack(p)


def test_prices_are_nearly_dual() -> None:
    """At an auction's prices most rows have a best column of their own, which fewer than half had before, and the
    dual value is above the optimum by no more than epsilon for each row."""
    p = drawn(0, 400, "unrelated")
    prices = assignment.auction_prices(p).astype(np.float64)
    before, after = (len(np.unique((p - v).argmax(1))) for v in (0, prices))
    assert before < 200 < 300 < after
    dual = float((p - prices).max(1).sum() + prices.sum())
    assert 0 <= dual - best(p) <= 400 * max(assignment.STEPS) * p.std()


@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e31])
def test_auctions_end(scale: float) -> None:
    """Rows that all want one column, ties, and profits at both ends of float32: few bids, and finite prices."""
    for kind in ("constant", "twice", "ties", "norms"):
        prices = assignment.auction_prices((drawn(1, 60, kind) * scale).astype(np.float32))
        assert np.isfinite(prices).all()


def test_related_points_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner products of points of unequal norms: by themselves they fail, less half of the columns' largest they
    tell; then nothing is solved."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 20)) * np.logspace(-0.15, 0.15, 30)[:, None]
    order = rng.permutation(30)
    p = x @ x[order].T
    assert len(np.unique(p.argmax(1))) < 30
    monkeypatch.setattr("scipy.optimize.linear_sum_assignment", lambda *given, **how: pytest.fail("it was solved"))
    assert optimal_columns(p).tolist() == np.argsort(order).tolist()


def test_unrelated_points_are_left_to_the_solver() -> None:
    """Nothing is proven where best columns meet."""
    assert distinct_best(drawn(0, 40, "unrelated")) is None


def test_a_proof_that_skips_rows_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that takes the best columns that are left without asking whether they are the best: the property
    above can fail."""

    def greedy(p: np.ndarray) -> np.ndarray:
        left, found = p.copy(), []
        for row in left:
            found.append(int(row.argmax()))
            left[:, found[-1]] = -np.inf
        return np.array(found)

    monkeypatch.setattr(assignment, "distinct_best", greedy)
    wrong = [
        total(p, optimal_columns(p)) < best(p) - slack(p) for p in (drawn(s, 20, "unrelated") for s in range(20))
    ]
    assert any(wrong)


@given(
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.lists(st.sampled_from(KINDS), min_size=2, max_size=12),
    st.sampled_from([1, 2**20]),
)
@settings(max_examples=40)
def test_many_at_once_are_what_each_is_alone(seed: int, n: int, kinds: list[str], alike: int) -> None:
    """Also where they are looked at in parts."""
    profits = [torch.from_numpy(drawn(seed + k, n, kind)) for k, kind in enumerate(kinds)]
    alone = torch.stack([assign(p) for p in profits])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "ALIKE", alike)
        assert torch.equal(assign(torch.stack(profits)), alone)


def test_batches_of_any_dtype() -> None:
    """bfloat16, several at once; what gains nothing stays."""
    p = torch.from_numpy(np.stack([drawn(s, 12, "unrelated") for s in range(3)]))
    found = assign(p.bfloat16())
    for each, columns in zip(p.bfloat16().double().numpy(), found.numpy(), strict=True):
        assert total(each, columns) == pytest.approx(best(each), rel=1e-12)
    assert any(columns != list(range(12)) for columns in found.tolist())
    assert assign(torch.ones(5, 5)).tolist() == list(range(5))
    assert assign(torch.zeros(2, 0, 0)).shape == (2, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_proves_nothing(bad: float) -> None:
    """Best columns may be distinct all the same; scipy refuses such profits, without a warning before."""
    profit = np.eye(4)
    profit[2, 2] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert distinct_best(profit) is None
        with pytest.raises(ValueError, match="invalid numeric"):
            optimal_columns(profit)
