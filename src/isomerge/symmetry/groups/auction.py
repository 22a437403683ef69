"""Prices of columns that are nearly dual to the best assignment, by auction (Bertsekas 1988, with his scaling of
epsilon).

Every row without a column bids for the one that is best for it less the price, by as much as it is better than the
second best, and epsilon; the highest bid takes it. Prices only ever start an exact solver here, which returns what
is best at any prices: they need not be optimal, so that an auction ends before its last rows, whose bids are most
of its rounds. Shortest augmenting paths are short where prices are nearly dual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Profit = NDArray[np.float32] | NDArray[np.float64]
    Prices = NDArray[np.float32]
    Index = NDArray[np.int64]

STEPS = (0.1, 0.01, 0.001)
"""Epsilons, in deviations of the profits; every auction starts from the prices of the one before."""
LEFT = 0.005
"""Share of rows that an auction leaves without a column."""
WORK = 16
"""Bids per row after which an auction ends as it is: related and unrelated neurons take 3 to 8."""
ROWS = 256
"""Rows that bid at once: their numbers stay in the cache."""


def auction_prices(profit: Profit) -> Prices:
    """Prices of the columns, float32 [n], all finite.

    Args:
        profit: [n, n] with n at least 2, finite.
    """

    prices = np.zeros(len(profit), np.float32)
    spread = float(profit[:ROWS].std(dtype=np.float64))
    if not np.isfinite(spread) or spread == 0:
        return prices
    with np.errstate(over="ignore", invalid="ignore"):  # profits near the end of float32: then there are no prices
        for step in STEPS:
            _auction(profit, prices, np.float32(step * spread))
    return prices if np.isfinite(prices).all() else np.zeros_like(prices)


def _auction(profit: Profit, prices: Prices, epsilon: np.float32) -> None:
    """Raise the prices until nearly every row has a column."""

    n = len(profit)
    owner, room = np.full(n, -1), np.empty_like(profit[:ROWS])
    free, work = np.arange(n), 0
    while len(free) > LEFT * n and work < WORK * n:
        work += len(free)
        column, bid = _bids(profit, prices, free, epsilon, room)
        order = np.argsort(bid, kind="stable")
        winner = np.full(n, -1)
        winner[column[order]] = order  # the last one that is written has the highest bid
        taken = np.flatnonzero(winner >= 0)
        who = winner[taken]
        out = owner[taken]
        owner[taken], prices[taken] = free[who], bid[who]
        lost = np.ones(len(free), bool)
        lost[who] = False
        free = np.concatenate([free[lost], out[out >= 0]])


def _bids(profit: Profit, prices: Prices, rows: Index, epsilon: np.float32, room: Profit) -> tuple[Index, Prices]:
    """For every row the column that is best less its price, and what the row bids for it; ``room`` is
    overwritten."""

    best, bid = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        block = room[: len(some)]
        profit.take(some, 0, out=block, mode="clip")  # "raise" would fill a copy first
        block -= prices
        here, column = np.arange(len(some)), block.argmax(1)
        value = block[here, column]
        block[here, column] = -np.inf
        best[start : start + ROWS] = column
        bid[start : start + ROWS] = prices[column] + (value - block.max(1)) + epsilon
    return best, bid
