"""Inner products of a few large tensors, in float64 and piece by piece.

Means on the sphere and Model Stock need nothing of their tensors but norms and angles: the rest happens in the span
of n tensors, on n coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.task_vectors import SUM

PIECE = 1 << 15
"""Elements of one tensor that are widened to float64 at a time, and stay in the cache."""


def inner_products(tensors: Sequence[Tensor], origin: Tensor | None = None) -> Tensor:
    """The Gram matrices of the rows of n matrices.

    Args:
        tensors: n matrices [rows, columns], float32 or float64.
        origin: subtracted from each of them, [rows, columns].

    Returns:
        float64 [rows, n, n]. Products of float32 numbers are exact in float64: the Gram of equal tensors is
        singular to 1e-16, where float32 sums would leave 1e-7, an angle of 3e-4.
    """
    rows, columns = tensors[0].shape
    n = len(tensors)
    grams = torch.zeros(rows, n, n, dtype=torch.float64, device=tensors[0].device)
    wide = max(1, min(columns, PIECE))
    tall = max(1, PIECE // wide)
    for top in range(0, rows, tall):
        for left in range(0, columns, wide):
            part = slice(top, top + tall), slice(left, left + wide)
            piece = torch.stack([t[part].double() for t in tensors], dim=1)  # [rows, n, columns]
            if origin is not None:
                piece -= origin[part].double().unsqueeze(1)
            grams[top : top + tall] += piece @ piece.mT
    return grams


def combination(
    tensors: Sequence[Tensor], coefficients: Sequence[float | Tensor], origin: Tensor | None = None
) -> Tensor:
    """``origin + sum_m c_m (theta_m - origin)`` in the tensors' dtype; without an origin, it is zero.

    Coefficients are numbers, or tensors that broadcast.
    """
    most = torch.finfo(tensors[0].dtype).max
    if all((not isinstance(c, Tensor) or c.numel() == 1) and abs(float(c)) <= most for c in coefficients):
        return SUM([[float(c)] for c in coefficients], (1.0, 1.0))(tensors, origin)
    total = torch.zeros_like(tensors[0])
    for tensor, coefficient in zip(tensors, coefficients, strict=True):
        total += (tensor if origin is None else tensor - origin) * coefficient
    return total if origin is None else total.add_(origin)
