"""The weighted average of aligned weights (model soups: Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion import bounds
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method, per_model, scale_free
from isomerge.passes import Entries, Entrywise


def weighted(d: Any, a: Any, b: Any, votes: Any) -> Any:
    """A sum, every entry times a weight ``a``."""
    return votes + d * a


def _whole(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return votes


MIXED = Entrywise(weighted, _whole)
"""The sum itself."""


@entries_method
@limited(bound=bounds.weighted)
@scale_free
def linear(
    tensors: Sequence[Tensor], *, weight: Sequence[float] = per_model(1.0), normalize: bool = True
) -> Entries:
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
    return MIXED([[share / total] for share in weight])
