"""LiNeS (Wang et al. 2025, LiNeS: Post-training Layer Scaling Prevents Forgetting and Enhances Model Merging)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import by_depth
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method, per_model
from isomerge.fusion.task_vectors import add_task_vectors
from isomerge.passes import Entries


@entries_method
@limited(bound=by_depth)
def lines(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    alpha: float | None = None,
    beta: float | None = None,
    depth: float = 0.0,
) -> Entries:
    """Task vectors scaled up with their layer: ``base + (alpha + beta l / (L - 1)) sum_m w_m delta_m`` in layer
    ``l`` of ``L``.

    Shallow layers, which every task needs, stay near the base (equation 3). What is outside of the layers has
    ``alpha``. Any other method takes the same scaling as a gradient of its ``lambda``: ``lambda: [alpha, alpha +
    beta]``.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        alpha: the factor in the first layer; None: one over the number of models.
        beta: what is added to it up to the last layer; None: one less alpha, so that the last layer has the whole
            sum.
        depth: where the tensor is in the stack of layers, from 0 to 1; 0 outside.
    """
    first, slope = factors(alpha, beta, len(tensors))
    factor = first + slope * depth
    return add_task_vectors(weight, base.dtype, normalize=False, lambda_=factor)


def factors(alpha: float | None, beta: float | None, count: int) -> tuple[float, float]:
    """The factor in the first layer, and what is added up to the last, for ``count`` models."""
    alpha = 1 / count if alpha is None else alpha
    return alpha, 1 - alpha if beta is None else beta
