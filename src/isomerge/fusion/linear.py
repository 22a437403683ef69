"""The weighted average of aligned weights (model soups: Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import weighted
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import elementwise_method, per_model, scale_free


def shares(*, weight: Sequence[float], normalize: bool) -> list[float]:
    """What every tensor is multiplied by.

    Raises:
        IsomergeError: the weights sum to zero, and should be divided by that.
    """
    total = sum(weight) if normalize else 1.0
    if total == 0:
        raise IsomergeError(
            "linear: the weights sum to zero, so there is no average: change one, or set normalize to false"
        )
    return [share / total for share in weight]


@elementwise_method(weights=shares)
@limited(bound=weighted)
@scale_free
def linear(
    tensors: Sequence[Tensor], *, weight: Sequence[float] = per_model(1.0), normalize: bool = True
) -> Tensor:
    """The weighted average: ``sum_m w_m theta_m``, divided by the sum of the weights when ``normalize``.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        weight: one weight per model.
        normalize: divide by the sum of the weights, as mergekit does by default.

    Raises:
        IsomergeError: see `shares`.
    """
    merged, *others = [
        torch.mul(x, w) for x, w in zip(tensors, shares(weight=weight, normalize=normalize), strict=True)
    ]
    for other in others:  # rounded before it is added, as `isomerge.loops.average` does
        merged.add_(other)
    return merged
