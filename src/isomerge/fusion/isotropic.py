"""Isotropic merging (Marczak et al. 2025, No Task Left Behind: Isotropic Model Merging with Common and
Task-Specific Subspaces)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import in_directions
from isomerge.fusion.matrices import directions, merged_matrices, nearest_orthonormal, stacked_triples, sum_of
from isomerge.fusion.method_options import NOT_NEGATIVE, SHARE, limited
from isomerge.fusion.registry import merge_method, per_model


@merge_method
@limited(weight=NOT_NEGATIVE, bound=in_directions)
def iso_c(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """Isotropic merging: the sum of task vectors with all its singular values set to their mean.

    ``base + lambda s U V^T`` with ``sum_m w_m delta_m = U S V^T`` and ``s`` the mean of the singular values that
    are not rounding (algorithm 1). What is no matrix is averaged (`isomerge.fusion.matrices`).

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model, by which its task vector is multiplied.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.
    """

    def mix(deltas: list[Tensor]) -> Tensor:
        u, s, v = directions(sum_of(deltas))
        return (u @ v).mul_(s.mean() if len(s) else 0.0)

    return merged_matrices(tensors, base, weight, mix, lambda_=lambda_, stacked=stacked)


@merge_method
@limited(weight=NOT_NEGATIVE, common=SHARE, bound=in_directions)
def iso_cts(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    common: float = 0.8,
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """Isotropic merging in common and task-specific subspaces: as `iso_c`, the weakest directions of the sum
    replaced by each model's own.

    The largest ``common`` share of the sum's singular triples stays; the others' places are divided among the
    models: each gives the strongest directions of its task vector beside the common ones, ``w_m delta_m - U_c U_c^T
    w_m delta_m``. All left and all right vectors are made orthonormal (Procrustes), all values set to their mean
    (algorithm 2). What is no matrix is averaged.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model, by which its task vector is multiplied.
        common: the share of the directions that is common; 1 is `iso_c`.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.

    Raises:
        IsomergeError: a share outside of [0, 1].
    """

    def mix(deltas: list[Tensor]) -> Tensor:
        shared, own = places(min(deltas[0].shape), len(deltas), common)
        triples = [directions(sum_of(deltas), shared)]
        if own:
            turn = triples[0][0]
            beside = torch.linalg.qr(turn, mode="complete").Q[:, turn.shape[1] :]
            for delta in deltas:
                u, s, v = directions(beside.mT @ delta, own)
                triples.append((beside @ u, s, v))
        (u, s, v), known = stacked_triples(triples), len(triples[0][1])
        nearest = nearest_orthonormal(u, known) @ nearest_orthonormal(v.mT, known).mT
        return nearest.mul_(s.mean() if len(s) else 0.0)

    return merged_matrices(tensors, base, weight, mix, lambda_=lambda_, stacked=stacked)


def places(side: int, models: int, common: float) -> tuple[int, int]:
    """How many directions are common, and how many each model's own: whole numbers that fill the smaller side."""
    own = min(round((side - int(side * common)) / models), side // models)
    return side - own * models, own
