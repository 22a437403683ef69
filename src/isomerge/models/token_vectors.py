"""Vectors for tokens that a model lacks, as sums of vectors of its own: which ones, and how much of each, is seen
in a model that has the token.

Both models know some tokens. Where a donor writes a token's vector as a sparse sum of the vectors of tokens that
both know, the model has the same sum of its own vectors for it. Widths and bases of the two need not agree:
coefficients alone are carried over. The sum is found by orthogonal matching pursuit (Pati, Rezaiifar and
Krishnaprasad 1993; for tokenizers: Goddard and Fernandes Neto 2025, "Training-free tokenizer transplantation via
orthogonal matching pursuit"), or it is of the nearest tokens by cosine.
"""

from __future__ import annotations

import torch
from torch import Tensor

BATCH = 256
"""Tokens that are looked at together."""


def matching_pursuit(
    targets: Tensor, dictionary: Tensor, terms: int, tolerance: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Every target as a sum of few rows of a dictionary, by orthogonal matching pursuit.

    Row by row that row is taken whose cosine with what is left is the largest in size; all coefficients are then
    those of least squares. It ends where what is left is less than ``tolerance`` of the target, or nothing is new.

    Args:
        targets: [n, d], floating point.
        dictionary: [m, d].
        terms: how many rows, at most.
        tolerance: relative.

    Returns:
        The rows taken, int64 [n, terms], and their coefficients [n, terms], zero where fewer were taken.
    """
    terms = min(terms, len(dictionary), dictionary.shape[1])
    lengths = dictionary.norm(dim=1)
    unit = dictionary / lengths.clamp_min(torch.finfo(dictionary.dtype).tiny)[:, None]
    parts = [_pursued(part, unit, lengths, terms, tolerance) for part in targets.split(BATCH)]
    rows, coefficients = (torch.cat(batches) for batches in zip(*parts, strict=True))
    return rows, coefficients


def _pursued(targets: Tensor, unit: Tensor, lengths: Tensor, terms: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """One batch: rows are made orthogonal one by one, which is least squares by QR."""
    n, d = targets.shape
    left, every = targets.clone(), torch.arange(n)
    rows = torch.zeros(n, terms, dtype=torch.long)
    basis, upper = targets.new_zeros(n, terms, d), targets.new_zeros(n, terms, terms)
    seen, along = targets.new_zeros(n, terms), torch.ones(n, dtype=torch.bool)
    enough = tolerance * targets.norm(dim=1)
    for term in range(terms):
        scores = (left @ unit.T).abs()
        if term:
            scores.scatter_(1, rows[:, :term], -1)
        best = scores.argmax(1)
        new = unit[best]
        for _ in range(2):  # twice is enough (Giraud, Langou and Rozloznik 2005)
            inside = torch.einsum("nkd,nd->nk", basis[:, :term], new)
            upper[:, :term, term] += inside
            new = new - torch.einsum("nkd,nk->nd", basis[:, :term], inside)
        size = new.norm(dim=1)
        along &= (left.norm(dim=1) > enough) & (size > 1e-6) & (lengths[best] > 0)
        upper[every, term, term] = torch.where(along, size, torch.ones_like(size))
        upper[:, :term, term] *= along[:, None]
        basis[:, term] = torch.where(along[:, None], new / size.clamp_min(1e-30)[:, None], torch.zeros_like(new))
        rows[:, term] = torch.where(along, best, torch.zeros_like(best))
        seen[:, term] = (basis[:, term] * left).sum(1)
        left = left - basis[:, term] * seen[:, term, None]
        if not along.any():
            break
    diagonal = upper.diagonal(dim1=1, dim2=2)
    diagonal.masked_fill_(diagonal == 0, 1)  # of terms that were not needed
    solution = torch.linalg.solve_triangular(upper, seen[..., None], upper=True)[..., 0]
    return rows, solution / lengths[rows].clamp_min(torch.finfo(lengths.dtype).tiny)


def nearest(targets: Tensor, dictionary: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Every target as a weighted mean of the rows of a dictionary that are nearest to it by cosine.

    Args:
        targets: [n, d], floating point.
        dictionary: [m, d].
        terms: how many rows, at most.

    Returns:
        The rows taken, int64 [n, terms], and their weights [n, terms]: cosines, of which negative ones count as
        nothing, that sum to one.
    """
    terms = min(terms, len(dictionary))
    tiny = torch.finfo(dictionary.dtype).tiny
    unit = dictionary / dictionary.norm(dim=1, keepdim=True).clamp_min(tiny)
    rows, weights = [], []
    for part in targets.split(BATCH):
        cosines = (part / part.norm(dim=1, keepdim=True).clamp_min(tiny)) @ unit.T
        closest = cosines.topk(terms, dim=1)
        positive = closest.values.clamp_min(0) + tiny
        rows.append(closest.indices)
        weights.append(positive / positive.sum(1, keepdim=True))
    return torch.cat(rows), torch.cat(weights)


def summed(table: Tensor, rows: Tensor, coefficients: Tensor) -> Tensor:
    """Weighted sums of rows of a table [m, ...], [n, ...] in the dtype of the coefficients."""
    flat = table.reshape(len(table), -1).to(coefficients.dtype)
    parts = [
        torch.einsum("nk,nkd->nd", c, flat[r])
        for r, c in zip(rows.split(BATCH), coefficients.split(BATCH), strict=True)
    ]
    made = torch.cat(parts) if parts else flat.new_zeros(0, flat.shape[1])
    return made.reshape(len(rows), *table.shape[1:])
