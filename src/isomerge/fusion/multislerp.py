"""Barycentric interpolation on the sphere (Goddard 2025, Multi-SLERP)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import on_sphere
from isomerge.fusion.inner_products import combination, inner_products
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method, per_model


@merge_method
@limited(bound=on_sphere)
def multislerp(
    tensors: Sequence[Tensor],
    base: Tensor | None = None,
    *,
    weight: Sequence[float] = per_model(1.0),
    normalize_weights: bool = True,
    eps: float = 1e-8,
) -> Tensor:
    """The weighted mean of directions, at the weighted mean length.

    ``(sum_m w_m |theta_m|) u / |u|`` with ``u = sum_m w_m theta_m / |theta_m|``; with a base, of the task vectors
    ``theta_m - base``. Multi-SLERP is described as a step in the tangent space at ``u / |u|``: that step is
    ``sum_m w_m (u_m - <u_m, u> u / |u|^2) = u - u = 0`` whatever the weights, so it is left out here. For the
    geodesic mean see `karcher`.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64. A single one comes back as it is.
        base: the origin of the sphere.
        weight: one weight per model.
        normalize_weights: divide the weights by their sum.
        eps: added to norms; the norm of ``u`` that counts as zero.

    Raises:
        IsomergeError: the weighted directions of three or more models cancel (two are then averaged), or the
            weights sum to zero.
    """
    if len(tensors) == 1:
        return tensors[0].clone()
    total = sum(weight) if normalize_weights else 1.0
    if total == 0:
        raise IsomergeError("multislerp: the weights sum to zero: change one, or set normalize_weights to false")
    shares = [w / total for w in weight]
    flat = [t.reshape(1, -1) for t in tensors]
    gram = inner_products(flat, None if base is None else base.reshape(1, -1))[0]
    norms = gram.diagonal().sqrt()
    onto = [share / (float(norm) + eps) for share, norm in zip(shares, norms, strict=True)]
    coefficients = gram.new_tensor(onto)
    length = math.sqrt(max(float(coefficients @ gram @ coefficients), 0.0))
    if length >= eps:
        mean = sum(share * float(norm) for share, norm in zip(shares, norms, strict=True))
        shares = [c * mean / length for c in onto]
    elif len(tensors) > 2 and float(norms.max()) > 0:
        raise IsomergeError(
            "multislerp: the weighted directions of the models cancel in a tensor, so they have no mean: "
            "change a weight"
        )
    return combination(tensors, shares, base)
