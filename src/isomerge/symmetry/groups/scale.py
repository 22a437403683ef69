"""The factors per coordinate: ``balance`` finds their sizes, ``solve`` their signs. Elements are float64."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from isomerge.symmetry.groups.discrete import Sign


class Scale(Sign):
    """One non-zero factor per coordinate, float64 [*b, n]; the dual side is divided by it."""

    name, compact = "Scale", "Sign"
    power = 1
    """The dual side is divided by this power of a factor."""

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        half = math.log(condition) / 2
        size = ((torch.rand(*batch, n, generator=rng, dtype=torch.float64) * 2 - 1) * half).exp()
        return size * Sign().sample(batch, n, rng)

    def factors(self, g: Tensor, dual: bool) -> Tensor:
        return g.pow(-self.power) if dual else g

    def inverse(self, g: Tensor) -> Tensor:
        return g.reciprocal()

    def contains(self, g: Tensor) -> bool:
        return bool((g.isfinite() & (g != 0)).all())

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """``g = (p G- / G+)^(1 / (2 + 2 p))`` with the power p: both sides get the same norm where it is one."""
        above = plus.diagonal(dim1=-2, dim2=-1)
        below = minus.diagonal(dim1=-2, dim2=-1)
        tiny = torch.finfo(torch.float32).tiny  # weights of float32: smaller squares are zeros
        dead = (above <= tiny) | (below <= tiny)
        ratio = torch.where(dead, torch.ones_like(above), self.power * below / above.clamp_min(tiny))
        g = torch.where(dead, torch.ones_like(above), ratio.pow(0.5 / (1 + self.power)))
        return g, dead.any(-1)

    def dimension(self, n: int) -> int:
        return n

    def generators(self, n: int) -> Tensor:
        return torch.eye(n, dtype=torch.float64)


class PositiveScale(Scale):
    """One positive factor per coordinate: what ReLU lets through."""

    name, compact = "PositiveScale", "Fixed"

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return super().sample(batch, n, rng, condition).abs()

    def contains(self, g: Tensor) -> bool:
        return bool((g.isfinite() & (g > 0)).all())

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        return self.identity(tuple(cross.shape[:-2]), cross.shape[-1]), self.score(cross)

    def score(self, cross: Tensor) -> Tensor:
        return cross.diagonal(dim1=-2, dim2=-1).sum(-1)


class SquaredScale(PositiveScale):
    """One positive factor per coordinate, whose square the dual side is divided by: what a squared ReLU lets
    through."""

    name, power = "SquaredScale", 2
