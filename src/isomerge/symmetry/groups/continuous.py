"""The continuous groups: rotations, general linear maps, scales, and the commutant of RoPE.

Elements are float64. Every non-compact group splits into a part removed by ``balance`` (Kempf-Ness: the
minimum-norm point of the orbit is unique up to the compact part) and a compact part found by ``solve``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError
from isomerge.symmetry.groups.discrete import Sign
from isomerge.symmetry.groups.polar import polar_factor

if TYPE_CHECKING:
    from torch import Generator, Tensor

# Eigenvalue ratio of a self-Gram below which a block counts as rank-deficient. Grams are squares, so this is a
# singular value ratio of 1e-6: above float32's rounding of weights (1e-7), below any condition met in practice.
DEAD = 1e-12
# Ratio of eigenvalues below which they are found from singular values: the least are then off by 1e-16 / 1e-10 of themselves.
THIN = 1e-10
# Relative spread within which a folded gain counts as constant: float32 rounds gain times 1 / gain to 1e-7.
CONSTANT = 1e-5


def random_orthogonal(batch: tuple[int, ...], n: int, rng: Generator) -> Tensor:
    """Haar-like random orthogonal matrices, float64 [*batch, n, n]."""
    import torch

    q, r = torch.linalg.qr(torch.randn(*batch, n, n, generator=rng, dtype=torch.float64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def spectral_power(gram: Tensor, power: float) -> Tensor:
    """A power of symmetric positive matrices [*b, n, n], through their eigenvalues."""
    import torch

    values, vectors = torch.linalg.eigh(gram)
    return (vectors * values.clamp_min(0).pow(power).unsqueeze(-2)) @ vectors.mT


def _modulus(root: Tensor, minus: Tensor) -> Tensor:
    """``(R G R)^(1/2)`` of symmetric positive R and G [*b, n, n]: its eigenvalues are the singular values of ``G^(1/2) R``.

    From their squares where these are all there; the least are lost to rounding where both matrices are small in one direction.
    """
    import torch

    values, vectors = torch.linalg.eigh(root @ minus @ root)
    found = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
    thin = values[..., 0] <= THIN * values[..., -1]
    if bool(thin.any()):
        _, sizes, turn = torch.linalg.svd(spectral_power(minus[thin], 0.5) @ root[thin])
        found[thin] = (turn.mT * sizes.unsqueeze(-2)) @ turn
    return found


class Orthogonal:
    """O(n), reflections included, as matrices [*b, n, n]. ``solve`` is orthogonal Procrustes (Eq. 10)."""

    name, compact = "O", "O"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        import torch

        return torch.eye(n, dtype=torch.float64).expand(*batch, n, n).clone()

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return random_orthogonal(batch, n, rng)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        g = g.to(x.dtype)
        # the result lies in memory as x does, so that it is copied back in order
        return (g @ x.mT).mT if x.stride(-1) != 1 else x @ g.mT

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        """A constant diagonal commutes with every matrix; any other stays diagonal under (signed) permutations alone."""
        if not bool(((x.amax(-1) - x.amin(-1)) > CONSTANT * x.abs().amax(-1)).any()):
            return x.clone()
        sizes = g.detach().abs()
        if bool(((sizes - sizes.round()).abs() > CONSTANT).any()):
            raise IsomergeError(
                "a gain that is not constant cannot be rotated: fold the norms' gains into their readers first"
            )
        return self.act(g * (1 - 2 * (g.detach() < 0).to(g.dtype)), x, dual)

    def contains(self, g: Tensor) -> bool:
        gap = g @ g.mT - self.identity(tuple(g.shape[:-2]), g.shape[-1])
        return bool(gap.abs().amax() < 1e-6)  # also False for NaN

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g @ h

    def inverse(self, g: Tensor) -> Tensor:
        return g.mT.contiguous()

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        return polar_factor(cross.double())

    def score(self, cross: Tensor) -> Tensor:
        import torch

        c = cross.double()
        return torch.linalg.eigvalsh(c @ c.mT).clamp_min(0).sqrt().sum(-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return (cross * g.to(cross.dtype)).sum((-2, -1))

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        return None

    def dimension(self, n: int) -> int:
        return n * (n - 1) // 2


class OrthogonalFixingOnes(Orthogonal):
    """The rotations that keep the vector of ones: what LayerNorm's centring leaves of O(n)."""

    name, compact = "OFixingOnes", "OFixingOnes"

    def complement(self, n: int) -> Tensor:
        """An orthonormal basis [n, n - 1] of the vectors of mean zero (Helmert)."""
        import torch

        basis = torch.zeros(n, n - 1, dtype=torch.float64)
        for k in range(1, n):
            basis[:k, k - 1] = 1 / math.sqrt(k * (k + 1))
            basis[k, k - 1] = -k / math.sqrt(k * (k + 1))
        return basis

    def _extend(self, small: Tensor, n: int) -> Tensor:
        basis = self.complement(n)
        return basis @ small @ basis.mT + 1 / n

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return self._extend(random_orthogonal(batch, n - 1, rng), n)

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        basis = self.complement(cross.shape[-1])
        small, _ = super().solve(basis.mT @ cross.double() @ basis)
        g = self._extend(small, cross.shape[-1])
        return g, self.contract(g, cross.double())

    def score(self, cross: Tensor) -> Tensor:
        return self.solve(cross)[1]

    def dimension(self, n: int) -> int:
        return (n - 1) * (n - 2) // 2


class GeneralLinear(Orthogonal):
    """GL(n) as matrices [*b, n, n]; the dual side is acted on by the inverse transpose."""

    name, compact = "GL", "O"

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        import torch

        half = math.log(condition) / 2
        spread = (torch.rand(*batch, n, generator=rng, dtype=torch.float64) * 2 - 1) * half
        if n > 1:  # both ends of the range are taken, so the condition number is the one asked for
            spread[..., 0], spread[..., 1] = half, -half
        left, right = random_orthogonal(batch, n, rng), random_orthogonal(batch, n, rng)
        return (left * spread.exp().unsqueeze(-2)) @ right

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        import torch

        return super().act(torch.linalg.inv(g).mT if dual else g, x, dual)

    def inverse(self, g: Tensor) -> Tensor:
        import torch

        return torch.linalg.inv(g)

    def contains(self, g: Tensor) -> bool:
        import torch

        if not bool(g.isfinite().all()):
            return False
        values = torch.linalg.svdvals(g)
        return bool((values[..., -1] > 1e-12 * values[..., 0]).all())

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """``P = G+^-1 # G-`` (geometric mean), ``g = P^(1/2)``: then both sides have the same Gram."""
        import torch

        def ratio(gram: Tensor) -> Tensor:
            values = torch.linalg.eigvalsh(gram)
            return values[..., 0] / values[..., -1].clamp_min(torch.finfo(torch.float64).tiny)

        dead = (ratio(plus) < DEAD) | (ratio(minus) < DEAD)
        eye = self.identity(tuple(plus.shape[:-2]), plus.shape[-1])
        plus = torch.where(dead[..., None, None], eye, plus)
        minus = torch.where(dead[..., None, None], eye, minus)
        root = spectral_power(plus, 0.5)
        inverse_root = spectral_power(plus, -0.5)
        mean = inverse_root @ _modulus(root, minus) @ inverse_root
        g = spectral_power((mean + mean.mT) / 2, 0.5)
        return torch.where(dead[..., None, None], eye, g), dead

    def dimension(self, n: int) -> int:
        return n * n


class Scale(Sign):
    """One non-zero factor per coordinate, float64 [*b, n]; the dual side is divided by it."""

    name, compact = "Scale", "Sign"

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        import torch

        half = math.log(condition) / 2
        size = ((torch.rand(*batch, n, generator=rng, dtype=torch.float64) * 2 - 1) * half).exp()
        return size * Sign().sample(batch, n, rng)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        factor = (g.reciprocal() if dual else g).to(x.dtype)
        return x * factor.unsqueeze(-2)

    def inverse(self, g: Tensor) -> Tensor:
        return g.reciprocal()

    def contains(self, g: Tensor) -> bool:
        return bool((g.isfinite() & (g != 0)).all())

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """``g = (G- / G+)^(1/4)``: both sides get the same norm."""
        import torch

        above = plus.diagonal(dim1=-2, dim2=-1)
        below = minus.diagonal(dim1=-2, dim2=-1)
        tiny = torch.finfo(torch.float32).tiny  # weights of float32: smaller squares are zeros
        dead = (above <= tiny) | (below <= tiny)
        g = torch.where(dead, torch.ones_like(above), below / above.clamp_min(tiny)).pow(0.25)
        return g, dead.any(-1)

    def dimension(self, n: int) -> int:
        return n


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


class ComplexGroup:
    """Non-zero complex numbers [*b, 2] on a pair of coordinates: all that commutes with RoPE.

    The plain side is multiplied by z, the dual side by ``1 / conj(z)``: the same phase, the inverse modulus.
    """

    name, compact = "Complex", "Complex"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        import torch

        return torch.tensor([1.0, 0.0], dtype=torch.float64).expand(*batch, 2).clone()

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        import torch

        angle = torch.rand(batch, generator=rng, dtype=torch.float64) * 2 * math.pi
        spread = (torch.rand(batch, generator=rng, dtype=torch.float64) * 2 - 1) * math.log(condition) / 2
        return torch.stack([angle.cos(), angle.sin()], -1) * spread.exp().unsqueeze(-1)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        import torch

        z = g / g.square().sum(-1, keepdim=True) if dual else g
        re, im = (part.to(x.dtype).unsqueeze(-1) for part in z.unbind(-1))
        a, b = x.unbind(-1)
        return torch.stack([re * a - im * b, im * a + re * b], -1)

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return Orthogonal().act_diagonal(g, x, dual)

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        import torch

        (a, b), (c, d) = g.unbind(-1), h.unbind(-1)
        return torch.stack([a * c - b * d, a * d + b * c], -1)

    def inverse(self, g: Tensor) -> Tensor:
        import torch

        re, im = g.unbind(-1)
        return torch.stack([re, -im], -1) / g.square().sum(-1, keepdim=True)

    def contains(self, g: Tensor) -> bool:
        return bool(g.isfinite().all() and (g.square().sum(-1) > 0).all())

    def _overlap(self, cross: Tensor) -> Tensor:
        """The complex inner product of both sides, [*b, 2]."""
        import torch

        c = cross.double()
        return torch.stack([c[..., 0, 0] + c[..., 1, 1], c[..., 1, 0] - c[..., 0, 1]], -1)

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """The phase alone: ``z = c / |c|``; the modulus is ``balance``'s part."""
        import torch

        overlap = self._overlap(cross)
        modulus = overlap.norm(dim=-1)
        one = self.identity(tuple(modulus.shape), 2)
        return torch.where((modulus > 0)[..., None], overlap / modulus.clamp_min(1e-300)[..., None], one), modulus

    def score(self, cross: Tensor) -> Tensor:
        return self._overlap(cross).norm(dim=-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return (self._overlap(cross) * g).sum(-1)

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """One modulus per pair, ``(tr G- / tr G+)^(1/4)``."""
        import torch

        above = plus.diagonal(dim1=-2, dim2=-1).sum(-1)
        below = minus.diagonal(dim1=-2, dim2=-1).sum(-1)
        tiny = torch.finfo(torch.float32).tiny
        dead = (above <= tiny) | (below <= tiny)
        size = torch.where(dead, torch.ones_like(above), below / above.clamp_min(tiny)).pow(0.25)
        return torch.stack([size, torch.zeros_like(size)], -1), dead

    def dimension(self, n: int) -> int:
        return 2
