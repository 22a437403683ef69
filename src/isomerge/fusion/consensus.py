"""Consensus merging by TALL masks (Wang et al. 2024, Localizing Task Information for Improved Model Merging and
Compression)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import in_directions
from isomerge.fusion.linear import weighted
from isomerge.fusion.method_options import NOT_NEGATIVE, Range, limited
from isomerge.fusion.registry import entries_method, per_model
from isomerge.passes import Entries, Entrywise


def _needs(d: Any, a: Any, b: Any, votes: Any, total: Any, count: Any) -> Any:
    v = d * a
    return total, count + type(d)(abs(v) > abs(votes - v) * b)


def _together(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return z + (votes if count >= q else type(z)(0)) * p


NEEDED = Entrywise(weighted, _together, _needs)


@entries_method
@limited(models=(2, None), tall_lambda=NOT_NEGATIVE, agreeing=Range(least=0), bound=in_directions)
def consensus(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    tall_lambda: Sequence[float] = per_model(0.4),
    agreeing: int = 2,
    lambda_: float = 1.0,
) -> Entries:
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
    return NEEDED(list(zip(weight, tall_lambda, strict=True)), (lambda_, agreeing))


def tall_mask(delta: Tensor, together: Tensor, threshold: float) -> Tensor:
    """The entries that a task needs of the sum ``together``: ``|delta| > threshold |together - delta|`` (equation
    5), a tensor of booleans."""
    return delta.abs() > (together - delta).abs_().mul_(threshold)
