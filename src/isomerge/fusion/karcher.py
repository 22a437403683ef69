"""The Karcher mean: the point of the sphere with the least sum of squared angles to the models (Karcher 1977)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import on_sphere
from isomerge.fusion.inner_products import combination, inner_products
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method


@merge_method
@limited(bound=on_sphere)
def karcher(tensors: Sequence[Tensor], *, max_iter: int = 10, tol: float = 1e-5) -> Tensor:
    """The mean direction on the sphere, at the mean length.

    From the normalised sum of the unit vectors ``u_m`` it iterates ``x <- exp_x(mean_m log_x(u_m))``, with
    ``log_x(u) = (a / sin a) (u - cos(a) x)`` for the angle ``a`` between x and u (Afsari 2011). All iterates lie in
    the span of the models, so the iteration runs on coefficients, with nothing of the weights but their Gram
    matrix.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64. A single one comes back as it is.
        max_iter: largest number of steps.
        tol: length of a step that ends the iteration, and norm up to which a model has no direction (it still
            counts for the mean length).
    """
    if len(tensors) == 1:
        return tensors[0].clone()
    gram = inner_products([t.reshape(1, -1) for t in tensors])[0]
    norms = gram.diagonal().sqrt().tolist()
    kept = [m for m, norm in enumerate(norms) if norm > tol]
    if not kept:
        return combination(tensors, [0.0] * len(tensors))
    lengths = gram.new_tensor([norms[m] for m in kept])
    cosines = (gram[kept][:, kept] / lengths.outer(lengths)).fill_diagonal_(1.0)
    mean = karcher_coefficients(cosines, max_iter, tol) / lengths
    length = sum(norms) / len(norms)
    coefficients = [0.0] * len(tensors)
    for m, coefficient in zip(kept, mean.tolist(), strict=True):
        coefficients[m] = length * coefficient
    return combination(tensors, coefficients)


def karcher_coefficients(cosines: Tensor, max_iter: int, tol: float) -> Tensor:
    """The Karcher mean of unit vectors as a combination of them, float64 [n], from their cosines, float64 [n, n].

    Where the vectors cancel (their sum is shorter than ``tol``), the iteration starts from the first. Where one is
    opposite to the iterate, no direction leads to it, and it does not pull.
    """
    n = len(cosines)

    def norm(c: Tensor) -> float:
        return math.sqrt(max(float(c @ cosines @ c), 0.0))

    x = torch.full((n,), 1 / n, dtype=cosines.dtype, device=cosines.device)
    length = norm(x)
    x = x / length if length >= tol else torch.eye(n, dtype=cosines.dtype, device=cosines.device)[0]
    for _ in range(max_iter):
        dots = (cosines @ x).clamp(-1, 1)
        angles = torch.acos(dots)
        still = (angles < tol) | (angles > math.pi - tol)
        pulls = torch.where(still, 0.0, angles / torch.sin(angles) / n)
        step = pulls - (pulls @ dots) * x
        length = norm(step)
        if length < tol:
            break
        x = math.cos(length) * x + math.sin(length) / length * step
        x = x / norm(x)
    return x
