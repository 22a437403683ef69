"""The best factor of any group of factors: a plain side is multiplied by it, the dual one is divided by a power.

``min_a |a x1 - x2|^2 + |y1 / a^p - y2|^2``: with p = 1 the quartic of `isomerge.matching.rescale`. A squared ReLU
has p = 2 (its neurons' rows times a, their columns over a^2). Each side alone falls to its own optimum and rises
behind it, so that the best factor lies between these: a grid of logarithms finds it, and Newton's steps end it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isomerge.matching.rescale import TINY, quartic_scale, quartic_value
from isomerge.symmetry.groups import GROUPS, power_of

GRID, NEWTON = 33, 12


class Factors(NamedTuple):
    """Which factors a group has."""

    power: int
    signed: bool
    """Whether negative ones are among them."""

    @classmethod
    def of(cls, group: str) -> Factors:
        """Those of a group by its name; of a rotation times a factor, all."""
        return cls(power_of(GROUPS[group]), group not in ("PositiveScale", "SquaredScale"))

    def best(self, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
        """The best factor; arguments and shape as of `isomerge.matching.rescale.quartic_scale`."""
        if self.power == 1:
            return quartic_scale(alpha, beta, plus, minus, signed=self.signed)
        return power_scale(alpha, beta, plus, minus, self.power)

    def value(self, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
        """The cost there, without the anchor's squares."""
        if self.power == 1:
            return quartic_value(alpha, beta, plus, minus, signed=self.signed)
        return self.cost(power_scale(alpha, beta, plus, minus, self.power), alpha, beta, plus, minus)

    def cost(self, a: Tensor, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
        """The cost of a factor, without the anchor's squares."""
        b = a.pow(-self.power)
        return alpha * a * a - 2 * plus * a + beta * b * b - 2 * minus * b


def power_scale(alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor, power: int) -> Tensor:
    """The positive factor of least cost, of the shape of all four traces together, float64; one where a side is
    zero, and where one is as good.

    Args:
        alpha: |x1|^2 of the moved model's plain side.
        beta: |y1|^2 of its dual side.
        plus, minus: <x1, x2> and <y1, y2> with the anchor's.
        power: of the factor that the dual side is divided by.
    """
    alive = (alpha > TINY) & (beta > TINY)
    a, b, plus, minus, alive = torch.broadcast_tensors(
        torch.where(alive, alpha, 1.0), torch.where(alive, beta, 1.0), plus, minus, alive
    )
    unit = (power * b / a).pow(0.5 / (1 + power))
    size = a * unit * unit  # balanced: the squares of both sides are size and size / power
    up, down = plus * unit / size, minus * unit.pow(-power) / size
    low, high = _bounds(up, down, power)
    x = _searched(up, down, low, high, power)
    better = _height(x, up, down, power) < _height(-unit.log(), up, down, power)
    return torch.where(alive & better, unit * x.exp(), torch.ones_like(unit))


def _bounds(up: Tensor, down: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Two logarithms between which the least point is: the optima of both sides, and where there is none the bounds
    of Lagrange for the roots of ``s^(2 + 2 p) - up s^(1 + 2 p) + p down s^p - 1``."""
    down = power * down
    ends = up.clamp_min(1e-300).log(), -down.clamp_min(1e-300).log() / power
    own, other = torch.where(up > 0, ends[0], -torch.inf), torch.where(down > 0, ends[1], torch.inf)
    above = torch.maximum(up, (-down).clamp_min(0).pow(1 / (2 + power))).clamp_min(1.0)
    below = torch.maximum(down.clamp_min(0).pow(1 / power), (-up).clamp_min(0).pow(1 / (1 + 2 * power))).clamp_min(
        1.0
    )
    low = torch.maximum(torch.minimum(own, other), -(2 * below).log())
    return low, torch.minimum(torch.maximum(own, other), (2 * above).log()).maximum(low)


def _searched(up: Tensor, down: Tensor, low: Tensor, high: Tensor, power: int) -> Tensor:
    """The least point between two logarithms: the best of a grid, then Newton's steps within a cell of it."""
    best, least = low, _height(low, up, down, power)
    for k in range(1, GRID):
        x = low + (high - low) * (k / (GRID - 1))
        height = _height(x, up, down, power)
        best, least = torch.where(height < least, x, best), torch.minimum(height, least)
    cell = (high - low) / (GRID - 1)
    left, right, x = best - cell, best + cell, best
    for _ in range(NEWTON):
        plain, dual = x.exp(), (-power * x).exp()
        slope = plain * plain - up * plain - dual * dual + power * down * dual
        bend = 2 * plain * plain - up * plain + 2 * power * dual * dual - power * power * down * dual
        step = torch.where(bend > 0, slope / bend.clamp_min(1e-300), torch.sign(slope) * cell / 4)
        x = torch.minimum(torch.maximum(x - step, left), right)
    return torch.where(_height(x, up, down, power) <= least, x, best)


def _height(x: Tensor, up: Tensor, down: Tensor, power: int) -> Tensor:
    """The cost of ``exp(x)``, between balanced sides."""
    plain, dual = x.exp(), (-power * x).exp()
    return plain * plain - 2 * up * plain + dual * dual / power - 2 * down * dual
