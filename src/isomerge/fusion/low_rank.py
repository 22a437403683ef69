"""The best approximation of a matrix by a product of two thin ones (Eckart and Young 1936)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.groups.singular import singular_values_and_vectors

EXACT_UP_TO = 2048
"""Matrices whose smaller side is longer than this are cut by a randomised range finder, unless the rank is near
it."""
OVERSAMPLING = 16
POWER_ITERATIONS = 4


@dataclass(frozen=True)
class Cut:
    """How many singular values are kept: at most ``rank`` (None: all), the fewest whose squares sum to the share
    ``energy``, and none below the share ``epsilon`` of the largest; ``seed`` is the randomised range finder's.
    """

    rank: int | None
    energy: float = 1.0
    epsilon: float = 0.0
    seed: int = 0


def norm(x: Tensor) -> float:
    """The Frobenius norm, summed in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def factors(matrix: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """``B [out, r], A [r, in]`` with B A the best approximation of a matrix; each has the roots of the singular
    values.

    Values within rounding of zero, by numpy's rule for ranks, are not counted.
    """
    rank = min(matrix.shape) if cut.rank is None else cut.rank
    u, s, v = leading(matrix, rank, cut.seed)
    floor = max(cut.epsilon, max(matrix.shape) * torch.finfo(s.dtype).eps) * float(s[0])
    count = min(rank, int((s > floor).sum()))
    if cut.energy < 1:
        shares = torch.cumsum(s.double() ** 2, 0) / norm(matrix) ** 2
        count = min(count, int((shares < cut.energy).sum()) + 1)
    count = max(count, 1)
    root = s[:count].sqrt()
    return u[:, :count] * root, root[:, None] * v[:count]


def leading(matrix: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """``U, S, V^T``: all, or the first few of a large matrix (Halko, Martinsson and Tropp 2011, algorithms 4.4 and
    5.1)."""
    few = rank + OVERSAMPLING
    if min(matrix.shape) <= max(EXACT_UP_TO, 2 * few):
        return singular_values_and_vectors(matrix, full_matrices=False)
    rng = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(matrix @ torch.randn(matrix.shape[1], few, generator=rng, dtype=matrix.dtype)).Q
    for _ in range(POWER_ITERATIONS):  # the spectra of fine-tuning differences are flat
        q = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.mT @ q).Q).Q
    u, s, v = singular_values_and_vectors(q.mT @ matrix, full_matrices=False)
    return q @ u, s, v
