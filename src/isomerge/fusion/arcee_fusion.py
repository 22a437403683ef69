"""Arcee Fusion (Arcee 2025): only the entries that matter come from the other model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import convex
from isomerge.fusion.inner_products import PIECE
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method
from isomerge.fusion.trimming import kth_smallest

EPS = 1e-8
"""Added to probabilities (mergekit's)."""


@merge_method
@limited(models=(1, 1), bound=convex)
def arcee_fusion(tensors: Sequence[Tensor], base: Tensor) -> Tensor:
    """The other model's entries where their importance is an upper outlier, the base's elsewhere.

    The importance of an entry is ``|theta - base| KL(softmax(theta row) || softmax(base row))``, rows along the
    last axis. Those at or above ``median + 1.5 (q3 - q1)`` of the tensor's importances are taken over.

    Computed in float64, as the divergence of two near rows is a difference of numbers a thousand times its size and
    more. Quantiles are exact (mergekit's are those of a random sample where a tensor has more than a million
    entries).

    Args:
        tensors: one tensor of any shape, float32 or float64, aligned.
        base: the base's.

    Raises:
        IsomergeError: there is not exactly one model beside the base.
    """
    if base.numel() == 0:
        return base.clone()
    delta = tensors[0] - base
    importance = delta.abs().double() * divergence(tensors[0], base)
    room, last = importance.flatten().clone(), importance.numel() - 1
    q1, median, q3 = (kth_smallest(room, int(q * last) + 1) for q in (0.25, 0.5, 0.75))
    return torch.where(importance >= median + 1.5 * (q3 - q1), base + delta, base)


def divergence(theta: Tensor, base: Tensor) -> Tensor:
    """``KL(softmax(theta) || softmax(base))`` of every row along the last axis, float64 [..., 1]."""
    width = base.shape[-1] if base.ndim else 1
    tall = max(1, PIECE // width)
    parts = []
    for x, y in zip(theta.reshape(-1, width).split(tall), base.reshape(-1, width).split(tall), strict=True):
        p, q = (z.double().softmax(-1) + EPS for z in (x, y))
        parts.append((p * (p / q).log()).sum(-1, keepdim=True))
    return torch.cat(parts).reshape((*base.shape[:-1], 1) if base.ndim else ())
