"""The polar factor of a matrix: orthogonal Procrustes (Schönemann 1966; Eq. 10 of the seed paper), batched.

``M = U H`` with U orthogonal and H symmetric, not negative: U maximises ``<M, U>``, and the score is the trace of
H. From the eigenvalues of ``M^T M`` both come in 0.6 of the time of a singular value decomposition. Squaring loses
half of the digits of small singular values, so matrices that have any are left to the decomposition.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.symmetry.groups.singular import singular_values_and_vectors

REGULAR = 1e-8
"""Ratio of the smallest to the largest eigenvalue of ``M^T M`` above which they are used. U is then off by
1e-16 / sqrt(1e-8) = 1e-12 at most, and no step of it is more than one part in 1e8 away from orthogonal."""


def polar_factor(m: Tensor) -> tuple[Tensor, Tensor]:
    """U [*b, n, n], orthogonal to rounding, and the nuclear norm [*b] of matrices m [*b, n, n], float64."""
    flat = m.reshape(-1, *m.shape[-2:])
    values, vectors = torch.linalg.eigh(flat.mT @ flat)
    # NaN and zeros are not regular either
    regular = (
        (values[:, :1] > REGULAR * values[:, -1:]).all(-1) if values.shape[-1] else values.new_ones(len(flat)) > 0
    )
    roots = values.clamp_min(torch.finfo(m.dtype).tiny).sqrt()
    factor = flat @ ((vectors / roots.unsqueeze(-2)) @ vectors.mT)
    factor = nearer_orthogonal(factor)
    score = roots.sum(-1)
    if not bool(regular.all()):
        u, s, vh = singular_values_and_vectors(flat[~regular])
        factor[~regular], score[~regular] = u @ vh, s.sum(-1)
    return factor.reshape(m.shape), score.reshape(m.shape[:-2])


def nearer_orthogonal(m: Tensor) -> Tensor:
    """Matrices m [*b, n, n] that are nearly orthogonal after one step of Newton and Schulz, which squares the
    gap."""
    return 1.5 * m - 0.5 * (m @ (m.mT @ m))
