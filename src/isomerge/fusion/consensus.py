"""Consensus merging by TALL masks (Wang et al. 2024, Localizing Task Information for Improved Model Merging and
Compression)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import in_directions
from isomerge.fusion.matrices import sum_of
from isomerge.fusion.method_options import NOT_NEGATIVE, Range, limited
from isomerge.fusion.registry import elementwise_method, per_model


@elementwise_method
@limited(models=(2, None), tall_lambda=NOT_NEGATIVE, agreeing=Range(least=0), bound=in_directions)
def consensus(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    tall_lambda: Sequence[float] = per_model(0.4),
    agreeing: int = 2,
    lambda_: float = 1.0,
) -> Tensor:
    """The sum of task vectors where enough tasks need it: what none needs, or one alone, is left out.

    ``base + lambda M tau`` with ``tau = sum_m w_m delta_m``; a model needs the entries of its TALL mask, and ``M``
    are those that ``agreeing`` models need.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model, by which its task vector is multiplied.
        tall_lambda: per model the mask's threshold, larger ones for smaller masks (theirs are 0.2 to 0.6).
        agreeing: how many models must need an entry; 1 leaves out what nobody needs, 0 is `task_arithmetic`.
        lambda_: scales what is added.

    Raises:
        IsomergeError: more models must agree than there are.
    """

    if agreeing > len(tensors):
        raise IsomergeError(
            f"`agreeing` is {agreeing:g}, but {len(tensors)} models are merged, so nothing would stay: choose less"
        )
    deltas = [(t - base).mul_(share) for t, share in zip(tensors, weight, strict=True)]
    together = sum_of(deltas)
    masks = [tall_mask(delta, together, share) for delta, share in zip(deltas, tall_lambda, strict=True)]
    needed = torch.stack(masks).sum(0) >= agreeing
    return torch.add(base, together.mul_(needed), alpha=lambda_)


def tall_mask(delta: Tensor, together: Tensor, threshold: float) -> Tensor:
    """The entries that a task needs of the sum ``together``: ``|delta| > threshold |together - delta|`` (equation
    5), a tensor of booleans."""
    return delta.abs() > (together - delta).abs_().mul_(threshold)
