"""The general linear group. Elements are float64.

It splits into a part that ``balance`` removes (Kempf-Ness: the minimum-norm point of the orbit is unique up to the
compact part) and the compact part, the rotations, that ``solve`` finds.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from isomerge.symmetry.groups.orthogonal import Orthogonal, random_orthogonal
from isomerge.symmetry.groups.singular import singular_values_and_vectors

# Eigenvalue ratio of a self-Gram below which a block counts as rank-deficient. Grams are squares, so this is a
# singular value ratio of 1e-6: above float32's rounding of weights (1e-7), below any condition met in practice.
DEAD = 1e-12
# Ratio of eigenvalues below which they are found from singular values: the least are then off by 1e-16 / 1e-10 of
# themselves.
THIN = 1e-10


def spectral_power(gram: Tensor, power: float) -> Tensor:
    """A power of symmetric positive matrices [*b, n, n], through their eigenvalues."""
    values, vectors = torch.linalg.eigh(gram)
    return _power(values, vectors, power)


def _power(values: Tensor, vectors: Tensor, power: float) -> Tensor:
    return (vectors * values.clamp_min(0).pow(power).unsqueeze(-2)) @ vectors.mT


def _modulus(root: Tensor, minus: Tensor) -> Tensor:
    """``(R G R)^(1/2)`` of symmetric positive R and G [*b, n, n]: its eigenvalues are the singular values of
    ``G^(1/2) R``.

    From their squares where these are all there; the least are lost to rounding where both matrices are small in
    one direction.
    """
    values, vectors = torch.linalg.eigh(root @ minus @ root)
    modulus = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
    thin = values[..., 0] <= THIN * values[..., -1]
    if bool(thin.any()):
        _, sizes, turn = singular_values_and_vectors(spectral_power(minus[thin], 0.5) @ root[thin])
        modulus[thin] = (turn.mT * sizes.unsqueeze(-2)) @ turn
    return modulus


class GeneralLinear(Orthogonal):
    """GL(n) as matrices [*b, n, n]; the dual side is acted on by the inverse transpose."""

    name, compact = "GL", "O"

    def sample(self, batch: tuple[int, ...], n: int, rng: Generator, condition: float = 4.0) -> Tensor:
        half = math.log(condition) / 2
        spread = (torch.rand(*batch, n, generator=rng, dtype=torch.float64) * 2 - 1) * half
        if n > 1:  # both ends of the range are taken, so the condition number is the one asked for
            spread[..., 0], spread[..., 1] = half, -half
        left, right = random_orthogonal(batch, n, rng), random_orthogonal(batch, n, rng)
        return (left * spread.exp().unsqueeze(-2)) @ right

    def act(self, g: Tensor, x: Tensor, dual: bool) -> Tensor:
        return super().act(torch.linalg.inv(g).mT if dual else g, x, dual)

    def inverse(self, g: Tensor) -> Tensor:
        return torch.linalg.inv(g)

    def contains(self, g: Tensor) -> bool:
        if not bool(g.isfinite().all()):
            return False
        values = torch.linalg.svdvals(g)
        return bool((values[..., -1] > 1e-12 * values[..., 0]).all())

    def balance(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor] | None:
        """``P = G+^-1 # G-`` (geometric mean), ``g = P^(1/2)``: then both sides have the same Gram."""

        def ratio(values: Tensor) -> Tensor:
            return values[..., 0] / values[..., -1].clamp_min(torch.finfo(torch.float64).tiny)

        values, vectors = torch.linalg.eigh(plus)
        dead = (ratio(values) < DEAD) | (ratio(torch.linalg.eigvalsh(minus)) < DEAD)
        eye = self.identity(tuple(plus.shape[:-2]), plus.shape[-1])
        minus = torch.where(dead[..., None, None], eye, minus)
        root, inverse_root = (
            torch.where(dead[..., None, None], eye, _power(values, vectors, power)) for power in (0.5, -0.5)
        )
        mean = inverse_root @ _modulus(root, minus) @ inverse_root
        g = spectral_power((mean + mean.mT) / 2, 0.5)
        return torch.where(dead[..., None, None], eye, g), dead

    def dimension(self, n: int) -> int:
        return n * n

    def generators(self, n: int) -> Tensor:
        return torch.eye(n * n, dtype=torch.float64).unflatten(1, (n, n))
