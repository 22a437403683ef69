"""The weighted average of aligned weights (model soups: Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.fusion.registry import merge_method

if TYPE_CHECKING:
    from torch import Tensor


@merge_method
def linear(tensors: Sequence[Tensor], *, weights: Sequence[float], normalize: bool = True) -> Tensor:
    """``sum_m w_m theta_m``, divided by the sum of the weights when ``normalize``.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        weights: one weight per model.
        normalize: divide by the sum of the weights, as mergekit does by default.
    """
    import torch

    total = sum(weights) if normalize else 1.0
    merged = torch.zeros_like(tensors[0])
    for tensor, weight in zip(tensors, weights, strict=True):
        merged.add_(tensor, alpha=weight / total)
    return merged
