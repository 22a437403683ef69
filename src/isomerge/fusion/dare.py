"""DARE (Yu et al. 2024, Language Models are Super Mario): task vectors that keep random entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor

from isomerge.fusion.registry import per_model
from isomerge.fusion.task_vectors import sparse_method
from isomerge.fusion.trimming import Masked, parts_of, random_entries
from isomerge.passes import Part


def thinned(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float] = per_model(1.0),
    rescale: bool = True,
    rng: Generator,
    **_: Any,
) -> list[Part | None]:
    """Random entries of every task vector; None: it is kept as it is, and draws nothing.

    Args:
        tensors, base: as they are stored, of one shape.
        density: the share of entries that each task vector keeps; at 1 it is kept as it is.
        rescale: restore the sum of magnitudes.
        rng: draws the masks, model by model.
    """
    return parts_of(
        tensors,
        base,
        density,
        lambda sizes, share: Masked(random_entries(base, share, rng), sizes if rescale else None),
    )


dare_linear = sparse_method(
    "dare_linear",
    thinned,
    elects=False,
    normalize=False,
    about="""Drop and rescale: ``base + lambda sum_m w_m c_m (b_m * delta_m)`` with random masks ``b_m``.

    Every entry of a task vector is kept with probability ``density``. The factor ``c_m`` restores the sum of
    magnitudes (mergekit's; close to the paper's ``1 / density``, which it is in expectation).
    """,
)
dare_ties = sparse_method(
    "dare_ties",
    thinned,
    elects=True,
    normalize=False,
    about="DARE's random task vectors, with TIES' election of signs.",
)
