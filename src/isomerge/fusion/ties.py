"""TIES (Yadav et al. 2023, TIES-Merging: Resolving Interference When Merging Models)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.fusion.registry import per_model
from isomerge.fusion.task_vectors import sparse_method
from isomerge.fusion.trimming import Sizes, Trim, parts_of
from isomerge.passes import Part


def largest(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float] = per_model(1.0),
    rescale: bool = False,
    **_: Any,
) -> list[Part | None]:
    """Of every task vector the ``max(1, floor(density N))`` entries of largest magnitude (none at density 0);
    None: it is kept as it is. Of equal ones the earlier stay.

    Args:
        tensors, base: as they are stored, of one shape.
        density: the share of entries that each task vector keeps.
        rescale: scale what stays to the sum of magnitudes that there was.
    """
    n = base.numel()

    def part(sizes: Sizes, share: float) -> Part:
        kept = min(n, max(1, int(share * n))) if share else 0
        return Trim(sizes, n - kept, n, rescale=rescale, earlier=True)

    return parts_of(tensors, base, density, part)


ties = sparse_method(
    "ties",
    largest,
    elects=True,
    normalize=True,
    about="""Trim, elect, merge: task vectors keep their largest entries, and of these only those of the elected
    sign.

    ``base + lambda (sum_m w_m d_m [sign(w_m d_m) = s]) / (sum_m w_m [sign(w_m d_m) = s])`` with the trimmed task
    vectors ``d_m`` and ``s = sign(sum_m w_m d_m)``, entry by entry.
    """,
)
