"""Solutions of least squares stay near their models: one that does not is the average.

Two quadratic bowls that are nearly flat in a direction can have their common minimum as far out as one likes,
though each has its own where its model is (two lines that are nearly parallel cross far away). Such a minimum says
nothing of the models: it is what is left of rounding and of too few examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

REACH = 10.0
"""How far from the average a solution may lie, as a multiple of the farthest model's distance from it. With the
default options it is below 2 on small language models, with as few as two examples (docs/guide/which-method.md)."""
SINGULAR = "averaged, as the statistics are nearly singular (too few examples, or outputs that never occur)"


def near_or_average(
    step: Tensor, tensors: Sequence[Tensor], mean: Tensor, notes: list[str] | None = None
) -> Tensor:
    """``mean + step``, in the dtype of ``mean``; the mean alone where the step leads too far, or is not finite.

    Args:
        step: float64, of the shape of the tensors.
        tensors: the models'.
        mean: their weighted average.
        notes: is told of an average.
    """
    spread = max(_length(tensor.double() - mean.double()) for tensor in tensors)
    # equal models have a step of rounding
    if _length(step) <= REACH * spread + 1e-9 * _length(mean):
        return (mean.double() + step).to(mean.dtype).contiguous()
    if notes is not None:
        notes.append(SINGULAR)
    return mean


def distance_from(tensors: Sequence[Tensor], shares: Sequence[float]) -> float:
    """The farthest tensor's distance from the average with these shares, which sum to one."""
    mean = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        mean.add_(tensor.double(), alpha=share)
    return max(_length(tensor.double() - mean) for tensor in tensors)


def _length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
