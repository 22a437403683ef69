"""Task arithmetic (Ilharco et al. 2023, Editing Models with Task Arithmetic)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method, per_model, scale_free
from isomerge.fusion.task_vectors import add_task_vectors
from isomerge.passes import Entries


@entries_method
@limited(bound=task_vectors)
@scale_free
def task_arithmetic(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    normalize: bool = False,
    lambda_: float = 1.0,
    int8_mask: bool = False,
) -> Entries:
    """The base plus the weighted task vectors: ``base + lambda sum_m w_m (theta_m - base)``.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        normalize: divide the sum by the sum of the weights.
        lambda_: scales what is added.
        int8_mask: accepted for mergekit's recipes; there are no masks here.
    """
    return add_task_vectors(weight, base.dtype, normalize=normalize, lambda_=lambda_)
