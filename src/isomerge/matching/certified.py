"""One real search with a certificate: the factor that comes with a rotation or a phase.

Once these are solved, ``s = ln a`` is left with the cost ``alpha e^2s + beta e^-2s - 2 h(e^s C+ + e^-s C-)``, where
h is the score of a compact group that contains -1: a norm (nuclear for rotations, the modulus for phases). The cost
is a difference of convex functions and can have several minima, even several global ones.

Bound: every linear piece p e^s + m e^-s of h is its own second derivative, so h, which is not negative, is convex
in s and lies below its chord on an interval. The squares less twice the chord are convex, with their minimum in
closed form. The bound is off by the square of the interval's length; that of a Lipschitz constant, ``|h'| <= h(e^s
C+ - e^-s C-)``, would be off by the length itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Intervals at the start, and rounds of branch and bound; a round shortens every interval by a quarter or more, and
# 60 of them reach rounding. Practice needs fewer than 20.
PIECES, ROUNDS = 8, 60


@dataclass
class _Search:
    """A batch of searches, brought to ``alpha = beta = 1``; the cost is ``2 cosh 2s - 2 h(s)``."""

    plus: Tensor
    minus: Tensor
    support: Callable[[Tensor], Tensor]
    best: Tensor
    """The lowest cost seen [k]."""
    lowest_at: Tensor
    """Where it was seen [k]."""

    def height(self, item: Tensor, s: Tensor) -> Tensor:
        """h [m] of some searches at one point each; a better cost is kept."""
        wide = (slice(None), *[None] * (self.plus.ndim - 1))
        h = self.support(self.plus[item] * s.exp()[wide] + self.minus[item] * (-s).exp()[wide])
        cost = 2 * (2 * s).cosh() - 2 * h
        lowest = self.best.scatter_reduce(0, item, cost, "amin")
        hit = (cost <= lowest[item]) & (cost < self.best[item])
        self.lowest_at[item[hit]] = s[hit]
        self.best = lowest
        return h

    def ends(self) -> Tensor:
        """Ends [k, PIECES + 1] of the first intervals, which hold every minimiser.

        With ``p = h(C+)`` and ``m = h(C-)`` the cost is at least ``x^2 - 2 p x - m^2`` in ``x = e^s``; alike in
        e^-s.
        """

        p, m = self.support(self.plus), self.support(self.minus)
        reach = (p * p + m * m + self.best).clamp_min(0).sqrt()
        # widened by more than rounding; norms of zero leave x = y = 1, the minimum of the squares
        high, low = (p + reach).clamp_min(1).log() + 1e-6, -(m + reach).clamp_min(1).log() - 1e-6
        shares = torch.linspace(0, 1, PIECES + 1, dtype=torch.float64, device=low.device)  # see `points.evenly`
        return low[:, None] + (high - low)[:, None] * shares


def certified_scale(
    alpha: Tensor,
    beta: Tensor,
    plus: Tensor,
    minus: Tensor,
    support: Callable[[Tensor], Tensor],
    *,
    starts: Tensor | None = None,
    tolerance: float = 1e-10,
) -> tuple[Tensor, Tensor, Tensor]:
    """``min_s alpha e^2s + beta e^-2s - 2 h(e^s C+ + e^-s C-)`` to a certified gap, by branch and bound.

    Args:
        alpha, beta: squares of the moved model's plain and dual sides, positive, float64 [k].
        plus, minus: cross-Grams or overlaps C+ and C-, float64 [k, ...].
        support: the norm h for a stack [m, ...] of them, float64 [m].
        starts: further values of s to try [k, j].
        tolerance: what the gap may be, relative to the squares of the moved sides and the overlap at the optimum.

    Returns:
        s [k], its value [k], and the gap [k]: no s has a value below value - gap, up to the rounding of h.
    """

    shift, size = (beta.log() - alpha.log()) / 4, alpha.sqrt() * beta.sqrt()
    wide = (slice(None), *[None] * (plus.ndim - 1))
    every, zero = torch.arange(len(alpha)), torch.zeros_like(alpha)
    search = _Search(
        plus * (shift.exp() / size)[wide],
        minus * ((-shift).exp() / size)[wide],
        support,
        torch.full_like(alpha, torch.inf),
        zero.clone(),
    )
    for s in (zero, *(() if starts is None else (starts - shift[:, None]).unbind(-1))):
        search.height(every, s)
    ends = search.ends()
    h = torch.stack([search.height(every, s) for s in ends.unbind(-1)], -1)
    cells = torch.stack([x.flatten() for x in (ends[:, :-1], ends[:, 1:], h[:, :-1], h[:, 1:])])
    floor = _branch(search, every.repeat_interleave(PIECES), cells, tolerance)
    return search.lowest_at + shift, search.best * size, (search.best - floor).clamp_min(0) * size


def _branch(search: _Search, item: Tensor, cells: Tensor, tolerance: float) -> Tensor:
    """Cut intervals [4, m] (low, high, h there) of searches ``item`` [m] until none matters; a lower bound [k]."""

    floor = torch.full_like(search.best, torch.inf)
    for turn in range(ROUNDS + 1):
        bound, point = _chord_bound(cells)
        slack = tolerance * (4 * (2 * search.lowest_at).cosh() - search.best)
        alive = bound < (search.best - slack)[item]
        if turn == ROUNDS:
            alive = torch.zeros_like(alive)
        floor = floor.scatter_reduce(0, item[~alive], bound[~alive], "amin")
        if not bool(alive.any()):
            break
        item, cells, point = item[alive], cells[:, alive], point[alive]
        h = search.height(item, point)
        left = torch.stack([cells[0], point, cells[2], h])
        right = torch.stack([point, cells[1], h, cells[3]])
        item, cells = item.repeat(2), torch.cat([left, right], -1)
    return floor


def _chord_bound(cells: Tensor) -> tuple[Tensor, Tensor]:
    """A lower bound of the cost on intervals [4, m], and where to cut them: at its minimiser, away from the
    ends."""

    low, high, h_low, h_high = cells
    width = high - low
    slope = (h_high - h_low) / width.clamp_min(1e-300)
    s = torch.minimum(torch.maximum(torch.asinh(slope / 2) / 2, low), high)
    bound = 2 * (2 * s).cosh() - 2 * (h_low + slope * (s - low))
    return bound, torch.minimum(torch.maximum(s, low + width / 4), high - width / 4)
