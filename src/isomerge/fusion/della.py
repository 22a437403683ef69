"""DELLA (Deep et al. 2024, Reducing Interference in Model Merging through Magnitude-Based Sampling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from isomerge.fusion.method_options import Together
from isomerge.fusion.registry import per_model
from isomerge.fusion.task_vectors import sparse_method
from isomerge.fusion.trimming import Masked, Sizes, check_window, parts_of, ranked_entries
from isomerge.passes import Part
from isomerge.pieces import PIECE


def _check_drawn(density: float, epsilon: float) -> None:
    """A density of 0 or 1 draws nothing."""
    if 0 < density < 1:
        check_window(density, epsilon)


WINDOWS = Together(("density", "epsilon"), _check_drawn)


def pruned(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    density: Sequence[float] = per_model(1.0),
    epsilon: Sequence[float] = per_model(0.15),
    rescale: bool = True,
    rng: Generator,
    **_: Any,
) -> list[Part | None]:
    """Entries of every task vector, drawn by rank; None: it is kept as it is. One of density 0 or 1 draws nothing.

    Args:
        tensors, base: as they are stored, of one shape.
        density: the mean probability; at 1 a task vector is kept as it is, at 0 nothing of it.
        epsilon: half the width of the window of probabilities.
        rescale: restore the sum of magnitudes.
        rng: draws the masks, model by model.

    Raises:
        IsomergeError: probabilities outside of (0, 1).
    """

    def part(sizes: Sizes, share: float, window: float) -> Part:
        mask = torch.zeros(base.shape if base.ndim > 1 else (1, base.numel()), dtype=torch.bool)
        some = max(1, PIECE // max(1, mask.shape[1:].numel()))
        if share:
            rows = (t.reshape(mask.shape).split(some) for t in sizes.tensors)
            for x, y, place in zip(*rows, mask.split(some), strict=True):
                delta = x.to(sizes.wide) - y.to(sizes.wide)
                place.copy_(ranked_entries(delta, share, window, rng))
        return Masked(mask, sizes if rescale else None)

    return parts_of(tensors, base, density, part, epsilon)


della = sparse_method(
    "della",
    pruned,
    elects=True,
    normalize=True,
    together=WINDOWS,
    about="""MagPrune, then TIES' election: large entries of task vectors are kept more often than small ones.

    Within its row, the entry of rank r of n by magnitude is kept with probability
    ``density - epsilon + 2 epsilon (r - 1) / (n - 1)``. (The window is ``epsilon`` wide in the paper, and every
    entry is divided by its own probability; mergekit's is ``2 epsilon`` wide, and it restores the sum of
    magnitudes.)
    """,
)
della_linear = sparse_method(
    "della_linear",
    pruned,
    elects=False,
    normalize=False,
    together=WINDOWS,
    about="MagPrune without an election: ``base + lambda sum_m w_m c_m (b_m * delta_m)``.",
)
