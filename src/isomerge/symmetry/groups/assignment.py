"""Linear assignment, exactly: ``max_p sum_i P[i, p(i)]``, with a proof in place of a solution where there is a
cheap one.

Numbers v_j of the columns change the order of no two assignments: if for every row the column that is best by
``P[i, j] - v_j`` is another one, these are optimal (the dual solution is v, with ``u_i = max_j P[i, j] - v_j``).
Tried are v = 0, and half of every column's largest profit, which makes inner products of related points into
distances. All else is solved by scipy's Jonker and Volgenant (Crouse 2016), from the prices of an auction where
there are many rows: the same optimum in a third to a tenth of the time, since its augmenting paths are short then.

An auction (Bertsekas 1988, with his scaling of epsilon) gives the columns prices that are nearly dual to the best
assignment. Every row without a column bids for the one that is best for it less the price, by as much as it is
better than the second best, and epsilon; the highest bid takes it. Prices only ever start an exact solver here,
which returns what is best at any prices: they need not be optimal, so that an auction ends before its last rows,
whose bids are most of its rounds. Shortest augmenting paths are short where prices are nearly dual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
"""Rows that are looked at, or bid, at once: their numbers stay in the cache."""
MANY = 768
"""Rows from which on an auction takes less time than it saves."""
ALIKE = 2**20
"""Entries of several small problems that are looked at at once."""


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
        places, column = np.arange(len(some)), block.argmax(1)
        value = block[places, column]
        block[places, column] = -np.inf
        best[start : start + ROWS] = column
        bid[start : start + ROWS] = prices[column] + (value - block.max(1)) + epsilon
    return best, bid


def optimal_columns(profit: Profit) -> Index:
    """The column of every row that makes the sum of profits largest, int64 [n].

    Args:
        profit: [n, n], finite, float32 or float64; sums are in float64.
    """
    proven = distinct_best(profit)
    return _solved(profit) if proven is None else proven


def _solved(profit: Profit) -> Index:
    """The optimum by a solver."""
    from scipy.optimize import linear_sum_assignment

    # as costs in float64: where it maximises, scipy makes one copy more
    if len(profit) < MANY or not np.isfinite(profit).all():
        return linear_sum_assignment(-profit.astype(np.float64))[1]
    cost = auction_prices(profit).astype(np.float64) - profit
    return linear_sum_assignment(cost)[1]


def distinct_best(profit: Profit) -> Index | None:
    """The best columns of all rows, where they are distinct: by profit, or less half of the column's largest; else
    None.

    None as well where profits are not finite, which proves nothing.
    """
    if not len(profit):
        return np.empty(0, np.int64)
    largest = profit.max(0).astype(np.float64)
    if not np.isfinite(largest).all():
        return None
    columns = _best_columns(profit, None)
    return _best_columns(profit, largest / 2) if columns is None else columns


def _best_columns(profit: Profit, less: NDArray[np.float64] | None) -> Index | None:
    """Row by row in blocks; None as soon as one column is the best of two rows, mostly in the first block."""
    columns = np.empty(len(profit), np.int64)
    for start in range(0, len(profit), ROWS):
        block = profit[start : start + ROWS]
        end = start + len(block)
        # in float64 even where profits are float32: a difference that is rounded could make another column best
        columns[start:end] = (block if less is None else block.astype(np.float64) - less).argmax(1)
        if len(np.unique(columns[:end])) < end:
            return None
    return columns


def assign(profit: Tensor) -> Tensor:
    """Linear assignment that maximises the profit, exactly (see `optimal_columns`).

    Args:
        profit: [*b, n, n], any float dtype; sums are in float64.

    Returns:
        int64 [*b, n]: the column of every row. Where the identity is as good as the optimum (within rounding)
        the identity is returned: a pair that gains nothing is not moved.
    """
    n = profit.shape[-1]
    if not profit.numel():
        return profit.new_zeros(profit.shape[:-1], dtype=torch.int64)
    flat = profit.detach().cpu().reshape(-1, n, n)
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.double()
    parts = [_assigned(part) for part in flat.split(max(1, ALIKE // n**2))]
    return torch.cat(parts).reshape(profit.shape[:-1]).to(profit.device)


def _assigned(profit: Tensor) -> Tensor:
    """`assign` for several problems at once, [b, n, n] float32 or float64."""
    profit = profit.contiguous()
    alike = profit.numpy()
    columns = torch.from_numpy(optimal_columns(alike[0])[None] if len(alike) == 1 else _columns_of_each(alike))
    best = profit.gather(2, columns[..., None])[..., 0].double().sum(-1)
    stay = profit.diagonal(dim1=1, dim2=2).double().sum(-1)
    # float32 Grams carry about 1e-7 of their entries as noise
    noise = 1e-7 * torch.maximum(profit.amax(-1), -profit.amin(-1)).double().sum(-1)
    every = torch.arange(profit.shape[-1], device=profit.device)
    return torch.where((best - stay > noise)[:, None], columns, every)


def _columns_of_each(profit: Profit) -> Index:
    """`optimal_columns` of every problem [b, n, n]: what is proven without a solver is proven for all of them at
    once."""
    every = np.arange(profit.shape[-1])
    largest = profit.max(1).astype(np.float64)
    columns = profit.argmax(2)
    done = (np.sort(columns, 1) == every).all(1) & np.isfinite(largest).all(1)
    (rest,) = np.nonzero(~done)
    with np.errstate(invalid="ignore"):  # what is not finite is left to the solver, which refuses it
        columns[rest] = (profit[rest].astype(np.float64) - largest[rest, None] / 2).argmax(2)
    done[rest] = (np.sort(columns[rest], 1) == every).all(1) & np.isfinite(largest[rest]).all(1)
    for number in np.nonzero(~done)[0]:
        columns[number] = _solved(profit[number])
    return columns
