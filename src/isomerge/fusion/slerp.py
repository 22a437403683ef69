"""Spherical linear interpolation of two models (Shoemake 1985)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import interpolated
from isomerge.fusion.inner_products import combination, inner_products
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method

DOT_THRESHOLD = 0.9995
"""Cosine beyond which two tensors count as colinear (mergekit's)."""
EPS = 1e-8
"""Norm up to which a tensor counts as zero (mergekit's): it is not scaled to length one, its cosine is about
zero."""


@merge_method
@limited(models=(1, 1), bound=interpolated)
def slerp(tensors: Sequence[Tensor], base: Tensor, *, t: float) -> Tensor:
    """Spherical interpolation from the base to the other model.

    ``(sin((1 - t) a) base + sin(t a) theta) / sin(a)`` with the angle ``a`` between the two, each tensor taken as
    one vector. Where they are colinear or antipodal (``|cos a| > 0.9995``) it is the line ``(1 - t) base + t
    theta``.

    Args:
        tensors: one tensor of any shape, float32 or float64.
        base: the base's.
        t: 0 gives the base, 1 the other model.

    Raises:
        IsomergeError: there is not exactly one model beside the base.
    """
    other = tensors[0]
    gram = inner_products([base.reshape(1, -1), other.reshape(1, -1)])[0]
    norms = [math.sqrt(float(gram[i, i])) for i in range(2)]
    lengths = [norm if norm > EPS else 1.0 for norm in norms]
    cosine = min(1.0, max(-1.0, float(gram[0, 1]) / lengths[0] / lengths[1]))
    if abs(cosine) > DOT_THRESHOLD:
        return combination([base, other], [1 - t, t])
    angle = math.acos(cosine)
    return combination(
        [base, other], [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]
    )
