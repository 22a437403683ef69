"""Task singular vectors (Gargiulo et al. 2025, Task Singular Vectors: Reducing Task Interference in Model Merging),
and task arithmetic with truncated task vectors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import in_directions
from isomerge.fusion.matrices import directions, merged_matrices, sum_of, whitened
from isomerge.fusion.method_options import NOT_NEGATIVE, Range, limited
from isomerge.fusion.registry import merge_method, per_model


@merge_method
@limited(weight=NOT_NEGATIVE, rank=Range(least=1), bound=in_directions)
def tsv_m(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    rank: int | None = None,
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """Task singular vectors: the strongest directions of every task vector, side by side, made orthogonal to each
    other.

    ``base + lambda U S V^T``: of each task vector ``w_m delta_m = U_m S_m V_m^T`` the largest ``rank`` triples stay
    (equation 5); ``U`` is the nearest matrix of orthonormal columns to ``[U_1 ... U_n]``, ``V`` likewise (equation
    7, Procrustes). What is no matrix is averaged (`isomerge.fusion.matrices`).

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model, by which its task vector is multiplied.
        rank: singular values that each model keeps; None: its share of the smaller side, at least one.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.
    """

    def mix(deltas: list[Tensor]) -> Tensor:
        kept = _kept(rank, deltas)
        return whitened([directions(delta, kept) for delta in deltas])

    return merged_matrices(tensors, base, weight, mix, lambda_=lambda_, stacked=stacked)


@merge_method
@limited(rank=Range(least=1), bound=in_directions)
def svd_task_arithmetic(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    rank: int | None = None,
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """Task arithmetic with task vectors of low rank: ``base + lambda sum_m w_m cut(delta_m)``.

    ``cut`` keeps the largest ``rank`` singular values (Eckart and Young 1936). What is no matrix is added whole, so
    that with all ranks this is `task_arithmetic`.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        rank: singular values that each model keeps; None: its share of the smaller side, at least one.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.
    """

    def cut(delta: Tensor, kept: int) -> Tensor:
        u, s, v = directions(delta, kept)
        return (u * s) @ v

    def mix(deltas: list[Tensor]) -> Tensor:
        return sum_of([cut(delta, _kept(rank, deltas)) for delta in deltas])

    return merged_matrices(tensors, base, weight, mix, lambda_=lambda_, stacked=stacked, rest=sum_of)


def _kept(rank: int | None, deltas: Sequence[Tensor]) -> int:
    """How many singular values each of several models keeps."""
    return max(1, min(deltas[0].shape) // len(deltas)) if rank is None else int(rank)
