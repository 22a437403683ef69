"""TIES (Yadav et al. 2023, TIES-Merging: Resolving Interference When Merging Models)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import CONSENSUS, SHARE, limited
from isomerge.fusion.registry import entries_method, per_model
from isomerge.fusion.task_vectors import add_task_vectors
from isomerge.fusion.trimming import largest
from isomerge.passes import Entries, Part


@entries_method(select=largest)
@limited(density=SHARE, consensus_method=CONSENSUS, bound=task_vectors)
def ties(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    normalize: bool = True,
    rescale: bool = False,
    lambda_: float = 1.0,
    consensus_method: str = "sum",
    int8_mask: bool = False,
    selection: Sequence[Part | None] | None = None,
) -> Entries:
    """Trim, elect, merge: task vectors keep their largest entries, and of these only those of the elected sign.

    ``base + lambda (sum_m w_m d_m [sign(w_m d_m) = s]) / (sum_m w_m [sign(w_m d_m) = s])`` with the trimmed task
    vectors ``d_m`` and ``s = sign(sum_m w_m d_m)``, entry by entry.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        density: the share of entries that each task vector keeps (at least one entry; none at 0).
        normalize: divide by the weights that agree.
        rescale: scale trimmed task vectors to the sum of magnitudes that they had.
        lambda_: scales what is added.
        consensus_method: ``sum`` (the paper's) or ``count``, a vote of one sign per model.
        int8_mask: accepted for mergekit's recipes; masks are booleans here, and the result does not depend on it.
        selection: what stays of task vectors, where ``tensors`` are pieces of what `largest` was given.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    parts = largest(tensors, base, density=density, rescale=rescale) if selection is None else selection
    return add_task_vectors(
        weight, base.dtype, normalize=normalize, lambda_=lambda_, consensus=consensus_method, parts=parts
    )
