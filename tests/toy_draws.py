"""What the inputs of toys that see or hear are made of: numbers, and texts in which tokens stand for what is seen
or heard."""

from __future__ import annotations

import torch

from toy_seeing import IMAGE


def drawn_numbers(rng: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal numbers, float64."""
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def drawn_words(rng: torch.Generator, pieces: int, token: int = IMAGE) -> torch.Tensor:
    """Three texts, int64 [3, pieces + 9]; behind the first token stand so many that stand for what is seen or
    heard."""
    ids = torch.randint(4, 60, (3, pieces + 9), generator=rng)
    ids[:, 1 : 1 + pieces] = token
    return ids
