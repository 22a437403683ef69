"""The commutant of RoPE: phases and moduli of pairs of coordinates, or phases alone. Elements are float64.

``balance`` finds the moduli, ``solve`` the phases.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from isomerge.symmetry.groups.orthogonal import Orthogonal


class ComplexGroup:
    """Non-zero complex numbers [*b, 2] on a pair of coordinates: all that commutes with RoPE.

    The plain side is multiplied by z, the dual side by ``1 / conj(z)``: the same phase, the inverse modulus.
    """

    name, compact = "Complex", "Complex"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        return torch.tensor([1.0, 0.0], dtype=torch.float64).expand(*batch, 2).clone()

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        angle = torch.rand(batch, generator=rng, dtype=torch.float64) * 2 * math.pi
        spread = (torch.rand(batch, generator=rng, dtype=torch.float64) * 2 - 1) * math.log(condition) / 2
        return torch.stack([angle.cos(), angle.sin()], -1) * spread.exp().unsqueeze(-1)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        z = g / g.square().sum(-1, keepdim=True) if dual else g
        re, im = (part.to(x.dtype).unsqueeze(-1) for part in z.unbind(-1))
        a, b = x.unbind(-1)
        if z.requires_grad or x.requires_grad:
            return torch.stack([re * a - im * b, im * a + re * b], -1)
        moved = torch.empty_like(x)  # in the order of memory, of which a stack would be another
        c, d = moved.unbind(-1)
        torch.mul(re, a, out=c).sub_(im * b)
        torch.mul(im, a, out=d).add_(re * b)
        return moved

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return Orthogonal().act_diagonal(g, x, dual)

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        (a, b), (c, d) = g.unbind(-1), h.unbind(-1)
        return torch.stack([a * c - b * d, a * d + b * c], -1)

    def inverse(self, g: Tensor) -> Tensor:
        re, im = g.unbind(-1)
        return torch.stack([re, -im], -1) / g.square().sum(-1, keepdim=True)

    def contains(self, g: Tensor) -> bool:
        return bool(g.isfinite().all() and (g.square().sum(-1) > 0).all())

    def _overlap(self, cross: Tensor) -> Tensor:
        """The complex inner product of both sides, [*b, 2]."""
        c = cross.double()
        return torch.stack([c[..., 0, 0] + c[..., 1, 1], c[..., 1, 0] - c[..., 0, 1]], -1)

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """The phase alone: ``z = c / |c|``; the modulus is ``balance``'s part."""
        overlap = self._overlap(cross)
        modulus = overlap.norm(dim=-1)
        unit = self.identity(tuple(modulus.shape), 2)
        return torch.where((modulus > 0)[..., None], overlap / modulus.clamp_min(1e-300)[..., None], unit), modulus

    def score(self, cross: Tensor) -> Tensor:
        return self._overlap(cross).norm(dim=-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return (self._overlap(cross) * g).sum(-1)

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """One modulus per pair, ``(tr G- / tr G+)^(1/4)``."""
        above = plus.diagonal(dim1=-2, dim2=-1).sum(-1)
        below = minus.diagonal(dim1=-2, dim2=-1).sum(-1)
        tiny = torch.finfo(torch.float32).tiny
        dead = (above <= tiny) | (below <= tiny)
        size = torch.where(dead, torch.ones_like(above), below / above.clamp_min(tiny)).pow(0.25)
        return torch.stack([size, torch.zeros_like(size)], -1), dead

    def dimension(self, n: int) -> int:
        return 2

    def generators(self, n: int) -> Tensor:
        return torch.eye(2, dtype=torch.float64)


class Turn(ComplexGroup):
    """Phases [*b, 2] of a pair of coordinates: what is left of its complex numbers where queries and keys are
    normed without gains, which takes their sizes away. Both sides are turned alike."""

    name, compact = "Turn", "Turn"

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return super().sample(batch, n, rng, 1.0)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return super().act(g, x, dual=False)

    def inverse(self, g: Tensor) -> Tensor:
        re, im = g.unbind(-1)
        return torch.stack([re, -im], -1)

    def contains(self, g: Tensor) -> bool:
        return bool(((g.square().sum(-1) - 1).abs() < LENGTH).all())

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        return None

    def dimension(self, n: int) -> int:
        return 1

    def generators(self, n: int) -> Tensor:
        return torch.tensor([[0.0, 1.0]], dtype=torch.float64)


LENGTH = 1e-6
"""By how much the square of a phase may differ from one: a thousand compositions in float64 stay far below, and an
element that was stored in float32 is one."""
