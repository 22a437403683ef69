"""The discrete groups: permutations and signs. Permutations are index tensors, never matrices."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor

from isomerge.symmetry.groups.assignment import assign
from isomerge.symmetry.groups.protocol import Group


class Discrete(Group, Protocol):
    """What groups of finitely many elements have in common: no parameters, and nothing to balance."""

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return self.act(g, x, dual)

    def score(self, cross: Tensor) -> Tensor:
        return self.solve(cross)[1]

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        return None

    def dimension(self, n: int) -> int:
        return 0

    def generators(self, n: int) -> Tensor:
        return torch.zeros(0, n, dtype=torch.float64)


class Fixed(Discrete):
    """The trivial group: an axis that nothing moves."""

    name, compact = "Fixed", "Fixed"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        return torch.zeros(*batch, 0)

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return self.identity(batch, n)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return x

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g

    def inverse(self, g: Tensor) -> Tensor:
        return g

    def contains(self, g: Tensor) -> bool:
        return True

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        return self.identity(tuple(cross.shape[:-2]), cross.shape[-1]), self.score(cross)

    def score(self, cross: Tensor) -> Tensor:
        return cross.diagonal(dim1=-2, dim2=-1).sum(-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return self.score(cross)


class Permutation(Discrete):
    """Permutations as int64 indices [*b, n]: ``(g x)[i] = x[g[i]]``."""

    name, compact = "Perm", "Perm"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        return torch.arange(n).expand(*batch, n).clone()

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return torch.rand(*batch, n, generator=rng, dtype=torch.float64).argsort(-1)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        if g.ndim > 1:
            return x.gather(-1, g.unsqueeze(-2).expand(x.shape))
        if x.ndim == 2 and x.mT.is_contiguous():  # rows in memory: whole ones are copied, which is 35 times as fast
            return x.mT.index_select(0, g).mT
        return x.index_select(-1, g)

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        return h.gather(-1, g)

    def inverse(self, g: Tensor) -> Tensor:
        return g.argsort(-1)

    def contains(self, g: Tensor) -> bool:
        return not g.is_floating_point() and bool((g.sort(-1).values == torch.arange(g.shape[-1])).all())

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        g = assign(cross)
        return g, self.contract(g, cross)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return cross.gather(-1, g.unsqueeze(-1)).sum((-2, -1))


class Sign(Discrete):
    """One sign per coordinate, float64 [*b, n]."""

    name, compact = "Sign", "Sign"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        return torch.ones(*batch, n, dtype=torch.float64)

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        return torch.randint(0, 2, (*batch, n), generator=rng).double() * 2 - 1

    def factors(self, g: Tensor, dual: bool) -> Tensor:
        """What the coordinates of a side are multiplied by [*b, n]."""
        return g

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return x * self.factors(g, dual).to(x.dtype).unsqueeze(-2)

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g * h

    def inverse(self, g: Tensor) -> Tensor:
        return g

    def contains(self, g: Tensor) -> bool:
        return bool((g.abs() == 1).all())

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        diagonal = cross.diagonal(dim1=-2, dim2=-1)
        return (diagonal >= 0).double() * 2 - 1, diagonal.abs().sum(-1)

    def score(self, cross: Tensor) -> Tensor:
        return cross.diagonal(dim1=-2, dim2=-1).abs().sum(-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        return (cross.diagonal(dim1=-2, dim2=-1) * g.to(cross.dtype)).sum(-1)


class SignedPermutation(Discrete):
    """Signed permutations as int64 [*b, n] with entries +-(i + 1): ``(g x)[i] = sign * x[|g[i]| - 1]``."""

    name, compact = "SignedPerm", "SignedPerm"

    def identity(self, batch: tuple[int, ...], n: int) -> Tensor:
        return Permutation().identity(batch, n) + 1

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        signs = Sign().sample(batch, n, rng).long()
        return signs * (Permutation().sample(batch, n, rng) + 1)

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return Permutation().act(g.abs() - 1, x, dual) * g.sign().to(x.dtype).unsqueeze(-2)

    def act_diagonal(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return Permutation().act(g.abs() - 1, x, dual)

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g.sign() * h.gather(-1, g.abs() - 1)

    def inverse(self, g: Tensor) -> Tensor:
        back = (g.abs() - 1).argsort(-1)
        return g.sign().gather(-1, back) * (back + 1)

    def contains(self, g: Tensor) -> bool:
        return Permutation().contains(g.abs() - 1)

    def solve(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        index = assign(cross.abs())
        picked = cross.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        signs = (picked >= 0).long() * 2 - 1
        return signs * (index + 1), picked.abs().sum(-1)

    def contract(self, g: Tensor, cross: Tensor) -> Tensor:
        picked = cross.gather(-1, (g.abs() - 1).unsqueeze(-1)).squeeze(-1)
        return (picked * g.sign().to(cross.dtype)).sum(-1)
