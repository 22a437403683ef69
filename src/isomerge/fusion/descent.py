"""Adam (Kingma and Ba 2015) for one tensor whose gradient is a formula: no graph is kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

DECAY, SQUARES, FLOOR = 0.9, 0.999, 1e-8
LARGEST_STEP = (1 - DECAY) / (1 - SQUARES) ** 0.5
"""The most that an entry moves in one step, in learning rates (their section 2.1)."""


def adam(start: Tensor, gradient: Callable[[Tensor], Tensor], *, iterations: int, learning_rate: float) -> Tensor:
    """Where Adam arrives from ``start``, which is changed, after ``iterations`` steps along ``gradient``."""
    from isomerge.loops import compiled, descend

    mean, square = torch.zeros_like(start), torch.zeros_like(start)
    x, m, s = (t.view(-1).numpy() for t in (start, mean, square))
    for step in range(1, iterations + 1):
        rates = (
            1 - DECAY,
            SQUARES,
            1 - SQUARES,
            (1 - SQUARES**step) ** 0.5,
            FLOOR,
            learning_rate / (1 - DECAY**step),
        )
        slope = gradient(start).reshape(-1).numpy()
        compiled(descend)(x, m, s, slope, np.array(rates, x.dtype))
    return start
