"""Rotary positions on factorised forms (Su et al., arXiv:2104.09864).

With rotary positions a head's score is ``r_i S(j - i) r_j^T`` with a form that depends on the distance t = j - i:
``S(t) = sum_p cos(w_p t) S_even[p] + sin(w_p t) S_odd[p]``, one even and one odd form of rank 2 per frequency.
These are the head's invariants. Its factors are free by one complex number per frequency, and no more.
"""

from __future__ import annotations

import torch
from torch import Tensor


def frequencies(base: float, rank: int) -> Tensor:
    """The angles per position w_p [rank / 2], float64, of the usual geometric series."""
    return base ** -(torch.arange(0, rank, 2, dtype=torch.float64) / rank)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn vectors (..., T, rank), halves paired: (x_p, x_{p + rank/2}) by position times ``angles`` [rank / 2]."""
    # positions times frequencies lose their digits in float32
    turns = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)[:, None] * angles.double()
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def rotary_forms(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The invariants of rotary factors: ``S_even`` and ``S_odd`` [*b, rank / 2, m, m].

    Args:
        query: factors U [*b, rank, m], halves paired.
        key: factors V [*b, rank, m].
    """
    (a, b), (c, d) = query.chunk(2, -2), key.chunk(2, -2)

    def outer(x: Tensor, y: Tensor) -> Tensor:
        return x[..., :, None] * y[..., None, :]

    return outer(a, c) + outer(b, d), outer(b, c) - outer(a, d)
