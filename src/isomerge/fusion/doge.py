"""DOGE (Wei et al. 2025, Modeling Multi-Task Model Merging as Adaptive Projective Gradient Descent)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from isomerge.fusion.bounds import adapted
from isomerge.fusion.descent import adam
from isomerge.fusion.knots import trim
from isomerge.fusion.matrices import directions, merged_matrices, sum_of
from isomerge.fusion.method_options import NOT_NEGATIVE, SHARE, Range, limited
from isomerge.fusion.registry import merge_method, per_model

ROUNDING = 4e-6
"""Share of the base's length up to which a task vector is rounding, and is not drawn out to a length: 32 float32
roundings, as alignment leaves of what a model did not change."""
LARGE = 1e4
"""The largest change of a weight whose sixth power float32 holds well."""


@merge_method
@limited(
    weight=NOT_NEGATIVE,
    density=SHARE,
    eta=NOT_NEGATIVE,
    subspace=SHARE,
    iterations=Range(least=0),
    learning_rate=NOT_NEGATIVE,
    bound=adapted,
)
def doge(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    eta: float = 0.07,
    density: float = 0.3,
    subspace: float = 1 / 6,
    iterations: int = 400,
    learning_rate: float = 1e-4,
    lambda_: float = 1.0,
    stacked: int = 0,
) -> Tensor:
    """Task vectors of one length and a common correction, learned without data outside of what the tasks share.

    ``base + lambda sum_m c_m mask_m (delta_m + Delta)`` with ``c_m = w_m eta / |delta_m|`` and ``mask_m`` the
    largest entries of ``delta_m``. ``Delta`` starts at zero and follows Adam on ``sum_m |rows of delta_m * (delta_m
    - sum_j c_j (delta_j + Delta)), summed|^2``; of its gradient the part in the shared subspace is taken away: the
    span of the first ``subspace`` of the left singular vectors of all models' strongest directions. What is no
    matrix stays the base's, as in the publication, which merges weights of layers alone.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one weight per model.
        eta: the length that each task vector of a matrix takes on (the paper's eta, 0.07), in the units of weights.
        density: the share of its entries that each task vector keeps.
        subspace: the share of the directions that is shared, and that ``Delta`` leaves alone.
        iterations, learning_rate: of Adam.
        lambda_: scales what is added.
        stacked: how many leading axes number matrices.

    Raises:
        IsomergeError: a share outside of [0, 1].
    """
    rounding = ROUNDING * float(torch.linalg.vector_norm(base)) / prod(base.shape[:stacked]) ** 0.5

    def mix(deltas: list[Tensor]) -> Tensor:
        lengths = [float(torch.linalg.vector_norm(delta)) for delta in deltas]
        factors = [eta * w / n if n > rounding else 0.0 for w, n in zip(weight, lengths, strict=True)]
        shared = shared_directions(deltas, subspace)
        change = correction(deltas, factors, shared, int(iterations), learning_rate)
        kept = [(trim(delta, density) != 0, delta) for delta in deltas]
        return sum_of([(delta + change).mul_(mask).mul_(c) for (mask, delta), c in zip(kept, factors, strict=True)])

    ones = [1.0] * len(tensors)  # the factors have them
    return merged_matrices(
        tensors, base, ones, mix, lambda_=lambda_, stacked=stacked, rest=lambda deltas: torch.zeros_like(deltas[0])
    )


def shared_directions(deltas: Sequence[Tensor], share: float) -> Tensor:
    """Orthonormal columns ``[out, k]``: the first left singular vectors of the models' strongest ones, side by
    side."""
    side = min(deltas[0].shape)
    strongest = torch.cat([directions(delta, side // len(deltas))[0] for delta in deltas], 1)
    count = int(side * share + 1e-9)  # the share is a sixth, which no binary number is
    return directions(strongest, count)[0] if strongest.numel() else strongest


def correction(
    deltas: Sequence[Tensor], factors: Sequence[float], shared: Tensor, iterations: int, learning_rate: float
) -> Tensor:
    """The ``Delta [out, in]`` that Adam finds, its gradient without the directions ``shared``."""
    from isomerge.loops import compiled, row_slopes

    dtype = deltas[0].dtype
    if max(float(delta.abs().max()) for delta in deltas) > LARGE:
        deltas = [delta.double() for delta in deltas]
        shared = shared.double()
    scaled = sum_of([delta * c for delta, c in zip(deltas, factors, strict=True)])
    products = torch.stack([(delta * (delta - scaled)).sum(1) for delta in deltas]).numpy()
    every, total, slope = torch.stack(list(deltas)).numpy(), sum(factors), torch.empty_like(scaled)

    def gradient(change: Tensor) -> Tensor:
        compiled(row_slopes)(every, products, change.numpy(), every.dtype.type(total), slope.numpy())
        return slope.addmm_(shared, shared.mT @ slope, alpha=-1)

    return adam(torch.zeros_like(scaled), gradient, iterations=iterations, learning_rate=learning_rate).to(dtype)
