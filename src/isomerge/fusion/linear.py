"""The weighted average of aligned weights (model soups: Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import weighted
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import elementwise_method, per_model, scale_free


@elementwise_method
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
        IsomergeError: the weights sum to zero, and should be divided by that.
    """

    total = sum(weight) if normalize else 1.0
    if total == 0:
        raise IsomergeError(
            "linear: the weights sum to zero, so there is no average: change one, or set normalize to false"
        )
    shares = [share / total for share in weight]
    merged = torch.mul(tensors[0], shares[0])
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        merged.add_(tensor, alpha=share)
    return merged
