"""RegMean: linear layers merged so that they answer each model's inputs as that model does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.fusion.bounds import near_average, near_or_average
from isomerge.fusion.fisher import ROUNDING, checked_weights, pseudo_inverse, weighted_mean
from isomerge.fusion.method_options import NOT_NEGATIVE, SHARE, limited
from isomerge.fusion.registry import merge_method, per_model


@dataclass(frozen=True)
class InputGram:
    """What a linear layer reads."""

    gram: Tensor
    """E x x^T over tokens, float64 [in, in]."""
    axis: int = 1
    """Which axis of the weight reads the input: 1 of ``nn.Linear``, 0 of ``Conv1D``."""


@merge_method
@limited(weight=NOT_NEGATIVE, alpha=SHARE, bound=near_average)
def regmean(
    tensors: Sequence[Tensor],
    *,
    weight: Sequence[float] = per_model(1.0),
    grams: Sequence[InputGram | None],
    alpha: float = 0.9,
    notes: list[str] | None = None,
) -> Tensor:
    """Regression of every linear layer on the models' own outputs, in closed form; every other tensor is averaged.

    ``W = (sum_k w_k W_k G_k) (sum_k w_k G_k)^-1`` minimises ``sum_k w_k E |W x_k - W_k x_k|^2`` (Jin et al. 2023,
    "Dataless Knowledge Fusion by Merging Weights of Language Models", Eq. 2) with ``G_k = E x_k x_k^T``, a mean
    over the model's tokens where the paper has a sum. Products of different inputs are multiplied by ``alpha``
    (their Sec. 4): the further from 1, the closer to the average weighted by the inputs' sizes.

    Directions that no model's data see (singular Grams) keep the weighted average: a solution of least norm there
    would be zeros. Where the minimum lies far outside of the models, as with nearly singular Grams at alpha 1, the
    tensor is the average (`isomerge.fusion.bounds`).

    Args:
        tensors: one per model, of one shape, float32 or float64, aligned.
        weight: not negative.
        grams: of every model, aligned; where a model has none, the result is the weighted average.
        alpha: between 0 and 1.
        notes: is told when a tensor is averaged because its Grams are nearly singular.

    Raises:
        IsomergeError: negative weights, a sum of weights that is zero, or an alpha outside its range.
    """
    shares = checked_weights(weight)
    start = weighted_mean(tensors, weight)
    known = [g for g in grams if g is not None]
    if len(known) < len(tensors):
        return start
    turned = known[0].axis == 0
    w0 = (start.mT if turned else start).double()
    total, change = torch.zeros(w0.shape[1], w0.shape[1], dtype=torch.float64), torch.zeros_like(w0)
    for tensor, share, given in zip(tensors, shares, known, strict=True):
        gram = given.gram.double() * share
        gram = alpha * gram + (1 - alpha) * gram.diagonal().diag()
        total += gram
        change += ((tensor.mT if turned else tensor).double() - w0) @ gram
    step = _solved(total, change)
    return near_or_average(step.mT if turned else step, tensors, start, notes)


def _solved(gram: Tensor, change: Tensor) -> Tensor:
    """X of least norm with ``X gram = change`` [out, in]: by Cholesky, or by eigenvectors where it is singular."""
    size = gram.diagonal().sqrt()
    if bool((size > 0).all()):
        factor, info = torch.linalg.cholesky_ex(gram / size[:, None] / size)
        # pivots of a matrix with a diagonal of ones
        if int(info) == 0 and float(factor.diagonal().square().amin()) > ROUNDING:
            return torch.cholesky_solve((change / size).mT, factor).mT / size
    return change @ pseudo_inverse(gram)
