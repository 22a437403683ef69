"""DARE (Yu et al. 2024, Language Models are Super Mario): task vectors that keep random entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor

from isomerge.fusion.bounds import task_vectors
from isomerge.fusion.method_options import CONSENSUS, SHARE, limited
from isomerge.fusion.registry import entries_method, per_model
from isomerge.fusion.sparsity import random_entries
from isomerge.fusion.task_vectors import add_task_vectors
from isomerge.fusion.trimming import Masked, parts_of
from isomerge.passes import Entries, Part


def thinned(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float],
    rescale: bool,
    rng: Generator,
    **_: Any,
) -> list[Part | None]:
    """Random entries of every task vector; None: it is kept as it is, and draws nothing.

    Args:
        tensors, base: as they are stored, of one shape.
        density, rescale, rng: as of `dare_linear`.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    return parts_of(
        tensors,
        base,
        density,
        lambda sizes, share: Masked(random_entries(base, share, rng), sizes if rescale else None),
    )


@entries_method(select=thinned)
@limited(density=SHARE, bound=task_vectors)
def dare_linear(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
    int8_mask: bool = False,
    rng: Generator,
    selection: Sequence[Part | None] | None = None,
) -> Entries:
    """Drop and rescale: ``base + lambda sum_m w_m c_m (b_m * delta_m)`` with random masks ``b_m``.

    Every entry of a task vector is kept with probability ``density``. The factor ``c_m`` restores the sum of
    magnitudes (mergekit's; close to the paper's ``1 / density``, which it is in expectation).

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        density: the share of entries that each task vector keeps; at 1 it is kept as it is.
        normalize: divide by the sum of the weights.
        rescale: multiply by ``c_m``.
        lambda_: scales what is added.
        int8_mask: accepted for mergekit's recipes; the result does not depend on it.
        rng: draws the masks, model by model.
        selection: what stays of task vectors, where ``tensors`` are pieces of what `thinned` was given.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    parts = selection or thinned(tensors, base, density=density, rescale=rescale, rng=rng)
    return add_task_vectors(weight, base.dtype, normalize=normalize, lambda_=lambda_, parts=parts)


@entries_method(select=thinned)
@limited(density=SHARE, consensus_method=CONSENSUS, bound=task_vectors)
def dare_ties(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: Sequence[float] = per_model(1.0),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
    consensus_method: str = "sum",
    int8_mask: bool = False,
    rng: Generator,
    selection: Sequence[Part | None] | None = None,
) -> Entries:
    """DARE's random task vectors, with TIES' election of signs.

    Args:
        tensors, base, weight, density, rescale, lambda_, int8_mask, rng, selection: as in `dare_linear`.
        normalize: divide by the weights that agree.
        consensus_method: as in `isomerge.fusion.ties.ties`.

    Raises:
        IsomergeError: a density outside of [0, 1].
    """
    parts = selection or thinned(tensors, base, density=density, rescale=rescale, rng=rng)
    return add_task_vectors(
        weight, base.dtype, normalize=normalize, lambda_=lambda_, consensus=consensus_method, parts=parts
    )
