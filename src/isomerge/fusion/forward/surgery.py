"""Representation surgery: what a head reads in a merged model, brought to what it reads in a task's own model.

Yang et al. 2024 (Representation Surgery for Multi-Task Model Merging): in a merge, representations z of a task are
biased against those of the task's own model, and a small module of each task takes the bias away again,
``z - B relu(A z)``, learned without labels: the mean absolute difference from the task's own representations.

A module with a relu in it is no part of an ordinary checkpoint. Without the relu, and with a constant c where the
head has a bias, it is one: the head that reads ``z - B A z - c`` is ``W (1 - B A)`` with the bias ``b - W c``, and
W, b are the task's own. Both kinds are here: `learn` with ``rectified`` is the publication's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BATCH = 64
"""Rows of a step."""


@dataclass(frozen=True)
class Correction:
    """What is taken from a representation: ``B relu(A z) + c``, or ``B A z + c``."""

    down: Tensor
    """A, [rank, width]."""
    up: Tensor
    """B, [width, rank]."""
    shift: Tensor | None
    """c, [width]; None where there is none."""
    rectified: bool = False

    def __call__(self, rows: Tensor) -> Tensor:
        """Representations [n, width] without their bias."""
        inner = rows @ self.down.mT
        bias = (inner.relu() if self.rectified else inner) @ self.up.mT
        return rows - bias if self.shift is None else rows - bias - self.shift

    def folded(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A head's weight [outputs, width] and bias [outputs] that read what is not corrected; float64.

        Raises:
            ValueError: a correction that is not affine, or a constant without a bias to take it.
        """
        if self.rectified or (self.shift is not None and bias is None):
            raise ValueError("only an affine correction is part of a head, and a constant of its bias")
        wide = weight.double()
        reads = wide - (wide @ self.up.double()) @ self.down.double()
        if bias is None or self.shift is None:
            return reads, None if bias is None else bias.double()
        return reads, bias.double() - wide @ self.shift.double()


def bias_of(rows: Tensor, wanted: Tensor) -> float:
    """The mean absolute difference of representations [n, width] from those of the task's own model."""
    return float((rows - wanted).abs().mean(dtype=torch.float64))


def learn(
    rows: Tensor,
    wanted: Tensor,
    *,
    rank: int,
    steps: int,
    rate: float,
    seed: int = 0,
    rectified: bool = False,
    constant: bool = True,
    batch: int = BATCH,
) -> Correction:
    """The correction by which a merged model's representations come nearest to a task's own, by Adam.

    A is drawn as torch draws linear layers (uniform within ``1 / sqrt(width)``), B and c start at zero: the merged
    model as it is. Rows are drawn anew for every step.

    Args:
        rows: [n, width], float32: what the head reads in the merged model.
        wanted: the same tokens in the task's own model.
        rank: of the correction; at most the width.
        steps: of Adam.
        rate: its learning rate at the first step; it falls to zero along a line.
        seed: of A and of the rows that are drawn.
        rectified: with the publication's relu, which no ordinary checkpoint has.
        constant: whether there is a c.
        batch: rows of a step.

    Returns:
        The correction, in the scale of ``rows``.
    """
    width, rng = rows.shape[1], torch.Generator().manual_seed(seed)
    # in units of the task's own representations: a rate then means the same in every model
    unit = float(wanted.square().mean(dtype=torch.float64).sqrt()) or 1.0
    down = torch.empty(min(rank, width), width)
    down.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=rng)
    up, shift = torch.zeros(width, len(down)), torch.zeros(width) if constant else None
    learned = [x.requires_grad_(True) for x in (down, up, shift) if x is not None]
    correction = Correction(down, up, shift, rectified)
    optimizer = torch.optim.Adam(learned, lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        chosen = torch.randint(len(rows), (min(batch, len(rows)),), generator=rng)
        loss = (correction(rows[chosen] / unit) - wanted[chosen] / unit).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    down, up = down.detach(), up.detach()
    return Correction(down, up, None if shift is None else shift.detach() * unit, rectified)
