"""EMR-merging (Huang et al. 2024, EMR-Merging: Tuning-Free High-Performance Model Merging)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.fusion.bounds import in_directions
from isomerge.fusion.linear import weighted
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method, per_model
from isomerge.passes import Entries, Entrywise


def _largest(d: Any, a: Any, b: Any, votes: Any, total: Any, count: Any) -> Any:
    v = d * a
    v = v if votes > 0 else -v  # zero is negative, as theirs
    return v if v > total else total, count


def _signed(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return z + (total if votes > 0 else -total) * p


LARGEST = Entrywise(weighted, _signed, _largest)


@entries_method
@limited(bound=in_directions)
def emr(
    tensors: Sequence[Tensor], base: Tensor, *, weight: Sequence[float] = per_model(1.0), lambda_: float = 1.0
) -> Entries:
    """Elect, mask and rescale: the unified model, from which a light mask and a factor give each task's model.

    ``base + lambda tau``: per entry the sign of ``sum_m w_m delta_m``, with the largest magnitude among the task
    vectors of that sign. The masks and factors are written by `isomerge.merging.task_masks`; the unified model
    alone is not meant for use.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model, by which its task vector is multiplied.
        lambda_: scales what is added.
    """
    return LARGEST([[share] for share in weight], [lambda_])


def same_direction(delta: Tensor, unified: Tensor) -> Tensor:
    """EMR's mask of a task: the entries of the unified task vector whose sign is the task's (equation 4), a tensor
    of booleans."""
    return delta * unified > 0
