"""The rotations, reflections included, and those of them that LayerNorm's centring leaves. Elements are float64."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from isomerge.errors import IsomergeError
from isomerge.symmetry.groups.polar import polar_factor

# Relative spread within which a folded gain counts as constant: float32 rounds gain times 1 / gain to 1e-7.
CONSTANT = 1e-5


def random_orthogonal(batch: tuple[int, ...], n: int, rng: Generator) -> Tensor:
    """Haar-like random orthogonal matrices, float64 [*batch, n, n]."""
    q, r = torch.linalg.qr(torch.randn(*batch, n, n, generator=rng, dtype=torch.float64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


class Orthogonal:
    """O(n), reflections included, as matrices [*b, n, n]. ``solve`` is orthogonal Procrustes (Eq. 10)."""

    name, compact = "O", "O"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        return torch.eye(n, dtype=torch.float64).expand(*batch, n, n).clone()

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return random_orthogonal(batch, n, rng)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        g = g.to(x.dtype)
        # the result lies in memory as x does, so that it is copied back in order
        return (g @ x.mT).mT if x.stride(-1) != 1 else x @ g.mT

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        """A constant diagonal commutes with every matrix; any other stays diagonal under (signed) permutations
        alone."""
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
        c = cross.double()
        return torch.linalg.eigvalsh(c @ c.mT).clamp_min(0).sqrt().sum(-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return (cross * g.to(cross.dtype)).sum((-2, -1))

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        return None

    def dimension(self, n: int) -> int:
        return n * (n - 1) // 2

    def generators(self, n: int) -> Tensor:
        upper, lower = torch.triu_indices(n, n, 1)
        turns = torch.zeros(len(upper), n, n, dtype=torch.float64)
        turns[torch.arange(len(upper)), upper, lower] = 1
        return turns - turns.mT


class OrthogonalFixingOnes(Orthogonal):
    """The rotations that keep the vector of ones: what LayerNorm's centring leaves of O(n)."""

    name, compact = "OFixingOnes", "OFixingOnes"

    def complement(self, n: int) -> Tensor:
        """An orthonormal basis [n, n - 1] of the vectors of mean zero (Helmert)."""
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

    def generators(self, n: int) -> Tensor:
        basis = self.complement(n)
        return basis @ super().generators(n - 1) @ basis.mT
