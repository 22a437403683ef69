"""Task vectors as the matrices that they are: what the methods of singular values share.

A tensor of two axes is a matrix. A convolution's kernel ``[out, in, *window]`` is one too, ``[out, in window]``:
that is how it acts on a window of its input. Of stacked matrices, such as a layer's experts in one tensor, each
counts for itself. Everything else (biases, gains, scalars) has no singular values, and the weighted mean of its
task vectors is taken, as the publications do.

Directions whose singular value is rounding are left out, here and nowhere in the published code: what a model did
not change has no directions, and what LAPACK returns for them is arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from isomerge.fusion.task_vectors import NO_WEIGHT
from isomerge.symmetry.groups.singular import singular_values_and_vectors

Mix = Callable[[list[Tensor]], Tensor]
"""From one task vector per model, matrices ``[out, in]``, to the one that is added."""
Triple = tuple[Tensor, Tensor, Tensor]
"""Singular vectors, values and vectors: ``[out, k], [k], [k, in]``."""


def merged_matrices(
    tensors: Sequence[Tensor],
    base: Tensor,
    weight: Sequence[float],
    mix: Mix,
    *,
    lambda_: float,
    stacked: int = 0,
    rest: Mix | None = None,
) -> Tensor:
    """``base + lambda mix(w_1 delta_1, ...)``, matrix by matrix; of what is no matrix the weighted mean.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64.
        base: the base's tensor.
        weight: one weight per model, none negative where ``rest`` is None.
        mix: mixes matrices.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.
        rest: what to take of what is no matrix, instead of the mean.
    """
    deltas = [(t - base).mul_(share) for t, share in zip(tensors, weight, strict=True)]
    if base.ndim - stacked < 2 or not base.numel():
        mixed = mean_of(deltas, weight) if rest is None else rest(deltas)
        return torch.add(base, mixed, alpha=lambda_)
    shape = (prod(base.shape[:stacked]), base.shape[stacked], -1)
    each = [delta.reshape(shape) for delta in deltas]
    mixed = torch.stack([mix([part[k] for part in each]) for k in range(shape[0])])
    return torch.add(base, mixed.to(base.dtype).reshape(base.shape), alpha=lambda_)


def mean_of(deltas: Sequence[Tensor], weight: Sequence[float]) -> Tensor:
    """``sum_m w_m delta_m / sum_m w_m`` of task vectors that have their weights already; their sum where the
    weights sum to zero."""
    total = sum(weight)
    mixed = sum_of(deltas)
    return mixed / total if abs(total) >= NO_WEIGHT else mixed


def sum_of(deltas: Sequence[Tensor]) -> Tensor:
    """The sum of task vectors, a new tensor."""
    mixed = deltas[0].clone()
    for delta in deltas[1:]:
        mixed += delta
    return mixed


def directions(matrix: Tensor, rank: int | None = None) -> Triple:
    """The singular triples of a matrix, the largest ``rank`` (None: all) of those that are not rounding.

    In float32 they come of the Gram matrix of the shorter side in float64: its squares keep what float32 has, in a
    third of the time of a long matrix.
    """
    if matrix.dtype == torch.float64 or not matrix.numel():
        u, s, v = singular_values_and_vectors(matrix, full_matrices=False)
        count = _count(matrix, s, rank)
        return u[:, :count], s[:count], v[:count]
    if matrix.shape[0] < matrix.shape[1]:
        u, s, v = directions(matrix.mT, rank)
        return v.mT, s, u.mT
    wide = matrix.double()
    s, v = _right_directions(wide)
    count = _count(matrix, s, rank)
    u = (wide @ v[:, :count]) / s[:count]
    return u.to(matrix.dtype), s[:count].to(matrix.dtype), v[:, :count].mT.to(matrix.dtype)


def left_directions(matrices: Sequence[Tensor]) -> Tensor:
    """The left singular vectors of matrices side by side, without those of rounding."""
    side = torch.cat(list(matrices), 1)
    if side.dtype == torch.float64 or side.shape[0] >= side.shape[1]:
        return directions(side)[0]
    s, u = _right_directions(side.mT.double())
    return u[:, : _count(side, s, None)].to(side.dtype)


def _right_directions(wide: Tensor) -> tuple[Tensor, Tensor]:
    """The singular values of a float64 matrix and its right singular vectors, columns, by its Gram matrix."""
    squares, vectors = torch.linalg.eigh(wide.mT @ wide)
    return squares.clamp_min(0).sqrt().flip(0), vectors.flip(1)


def _count(matrix: Tensor, values: Tensor, rank: int | None) -> int:
    """How many singular values are no rounding, at most ``rank``."""
    floor = max(matrix.shape) * torch.finfo(matrix.dtype).eps * values[:1]
    count = int((values > floor).sum())
    return count if rank is None else min(rank, count)


def nearest_orthonormal(columns: Tensor, known: int = 0) -> Tensor:
    """The matrix of orthonormal columns nearest to a matrix ``[n, k]`` (Procrustes: the polar factor), of which the
    ``known`` first are orthonormal.

    What turns the known columns among themselves turns the nearest ones alike, so that of these no more change than
    there are others: the directions that the others share with them. Where columns depend on each other the nearest
    is not unique: the partial isometry is taken, which adds no direction that they do not have.
    """
    if not columns.numel():
        return columns
    first, rest = columns[:, :known], columns[:, known:]
    if 0 < 2 * rest.shape[1] < columns.shape[1]:
        turn = torch.linalg.qr(first.mT @ rest).Q
        shared = first @ turn
        nearest = nearest_orthonormal(torch.cat([shared, rest], 1))
        moved, others = nearest[:, : turn.shape[1]], nearest[:, turn.shape[1] :]
        return torch.cat([first + (moved - shared) @ turn.mT, others], 1)
    u, _, v = directions(columns)
    return u @ v


def whitened(triples: Sequence[Triple]) -> Tensor:
    """The product of several models' triples put side by side, their left and right vectors made orthonormal
    first."""
    u, s, v = stacked_triples(triples)
    return (nearest_orthonormal(u) * s) @ nearest_orthonormal(v.mT).mT


def stacked_triples(triples: Sequence[Triple]) -> Triple:
    """Several models' triples side by side."""
    left, values, right = zip(*triples, strict=True)
    return torch.cat(left, 1), torch.cat(values), torch.cat(right)
