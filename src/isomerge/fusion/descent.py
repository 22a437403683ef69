"""Adam (Kingma and Ba 2015) for one tensor whose gradient is a formula: no graph is kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DECAY, SQUARES, FLOOR = 0.9, 0.999, 1e-8
LARGEST_STEP = (1 - DECAY) / (1 - SQUARES) ** 0.5
"""The most that an entry moves in one step, in learning rates (their section 2.1)."""


def adam(start: Tensor, gradient: Callable[[Tensor], Tensor], *, iterations: int, learning_rate: float) -> Tensor:
    """Where Adam arrives from ``start``, which is changed, after ``iterations`` steps along ``gradient``."""
    mean, square = torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, iterations + 1):
        slope = gradient(start)
        mean.lerp_(slope, 1 - DECAY)
        square.mul_(SQUARES).addcmul_(slope, slope, value=1 - SQUARES)
        below = square.sqrt().div_((1 - SQUARES**step) ** 0.5).add_(FLOOR)
        start.addcdiv_(mean, below, value=-learning_rate / (1 - DECAY**step))
    return start
