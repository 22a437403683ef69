"""Spherical interpolation of two models, or of their task vectors, whole or slice by slice (mergekit's NuSLERP)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import interpolated
from isomerge.fusion.inner_products import combination, inner_products
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method, per_model

NORM = 1e-7
"""Smallest norm that a vector is divided by (mergekit's)."""
SINE = 1e-7
"""Largest sine of the angle between two vectors that count as colinear. It is 1e-8 in mergekit, whose square is
below the rounding of a squared cosine: antipodal vectors would be divided by noise."""
TOTAL = 1e-6
"""Sum of weights that counts as zero (mergekit's)."""


@merge_method
@limited(models=(2, 2), bound=interpolated)
def nuslerp(
    tensors: Sequence[Tensor],
    base: Tensor | None = None,
    *,
    weight: Sequence[float] = per_model(1.0),
    nuslerp_row_wise: bool = False,
    nuslerp_flatten: bool = True,
) -> Tensor:
    """Spherical interpolation between two models by their weights, ``t = w_2 / (w_1 + w_2)``.

    With a base, of their task vectors: ``base + slerp(theta_1 - base, theta_2 - base)``. Unlike in `slerp`, only
    what is colinear to rounding (sine up to 1e-7) is interpolated on a line.

    Args:
        tensors: two tensors of one shape, float32 or float64.
        base: the base's tensor.
        weight: one weight per model; if they sum to zero, ``t`` is a half.
        nuslerp_flatten: a tensor is one vector. Else its slices along one axis are vectors of their own:
        nuslerp_row_wise: those along the first axis; else those along the last.

    Raises:
        IsomergeError: there are not two models.
    """
    total = weight[0] + weight[1]
    t = 0.5 if abs(total) < TOTAL else weight[1] / total
    ends = [_vectors(x, nuslerp_flatten, nuslerp_row_wise) for x in tensors]
    origin = None if base is None else _vectors(base, nuslerp_flatten, nuslerp_row_wise)
    rows = None if origin is None else origin.reshape(-1, origin.shape[-1])
    gram = inner_products([x.reshape(-1, x.shape[-1]) for x in ends], rows)
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt().clamp_min(NORM)
    cosine = (gram[:, 0, 1] / norms[:, 0] / norms[:, 1]).clamp(-1, 1)
    line = 1 - cosine.square() <= SINE**2
    angle = torch.acos(torch.where(line, 0.0, cosine))
    first = torch.where(line, 1 - t, torch.sin((1 - t) * angle) / torch.sin(angle))
    second = torch.where(line, t, torch.sin(t * angle) / torch.sin(angle))
    a, b = (c.reshape(*ends[0].shape[:-1], 1) for c in (first, second))
    turned = combination(ends, [a.to(ends[0].dtype), b.to(ends[0].dtype)], origin)
    if nuslerp_row_wise and not nuslerp_flatten and tensors[0].ndim:
        turned = turned.transpose(0, -1)
    return turned.reshape(tensors[0].shape)


def _vectors(x: Tensor, flatten: bool, row_wise: bool) -> Tensor:
    """The tensor with the vectors that are interpolated along its last axis."""
    if flatten or x.ndim == 0:
        return x.reshape(-1)
    return x.transpose(0, -1) if row_wise else x
