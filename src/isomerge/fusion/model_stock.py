"""Model Stock (Jang et al. 2024, All We Need Is Just a Few Fine-Tuned Models)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from isomerge.fusion.bounds import stock
from isomerge.fusion.inner_products import combination, inner_products
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method

PRODUCT = 1e-6
"""Smallest product of two norms that is divided by (mergekit's)."""
SINGULAR = 1e-6
"""Denominator up to which the base is kept (mergekit's)."""


@merge_method
@limited(models=(2, None), bound=stock)
def model_stock(tensors: Sequence[Tensor], base: Tensor, *, filter_wise: bool = False) -> Tensor:
    """Between the base and the average, as near to the average as the models agree.

    ``t mean_m(theta_m) + (1 - t) base`` with ``t = n c / (1 + (n - 1) c)`` for n models, where c is the mean cosine
    between their task vectors. Were the models drawn around a centre at equal distances and right angles, this
    would be the nearest point to the centre.

    Args:
        tensors: two or more tensors of one shape, float32 or float64, aligned.
        base: the base's tensor.
        filter_wise: an angle and a ``t`` for every row (along the last axis); else one for the whole tensor.

    Raises:
        IsomergeError: fewer than two models.
    """
    n = len(tensors)
    width = base.shape[-1] if filter_wise and base.ndim > 0 else base.numel()
    origin = base.reshape(-1, width)
    rows = [t.reshape(-1, width) for t in tensors]
    gram = inner_products(rows, origin)
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = [
        (gram[:, a, b] / (norms[:, a] * norms[:, b]).clamp_min(PRODUCT)).clamp(-1, 1)
        for a, b in combinations(range(n), 2)
    ]
    cosine = torch.stack(cosines).mean(0)
    below = 1 + (n - 1) * cosine
    singular = below.abs() < SINGULAR
    t = torch.where(singular, 0.0, n * cosine / torch.where(singular, 1.0, below))
    share = (t / n).to(base.dtype).unsqueeze(-1)
    return combination(rows, [share] * n, origin).reshape(base.shape)
