"""The line between two matched models, as weights that a live module can be given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedSimplex
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.stage import Stage

PATH = (0.25, 0.4, 0.5, 0.6, 0.75)
"""The points at which a line is judged: its maximum counts. A look costs as much as some steps of learning."""


class MatchedLine(MatchedSimplex):
    """The line from the anchor to the source as the solver has matched it: points are ``[1 - t, t]``.

    Args:
        solver: a solver after its descent.
        settings: device and precision.
    """

    def __init__(self, solver: StreamSolver, settings: LearnSettings) -> None:
        plan, anchor = solver.pair.plan, solver.pair.anchor
        units = (solver.placed_unit(unit) for unit in plan.units)
        placed = ((unit.anchor, unit.source) for unit in units)
        super().__init__(plan, anchor, placed, lambda block: solver.units.folded(0, block), (0.5, 0.5), settings)

    def points(self) -> list[list[float]]:
        """Points of the middle half, the midpoint among them."""
        return [[1 - t, t] for t in PATH]

    def drawn(self, rng: Generator) -> list[float]:
        """A point of the middle half, uniform."""

        t = float(torch.rand((), generator=rng)) * 0.5 + 0.25
        return [1 - t, t]

    def mixed(self, block: Block, point: Sequence[float], stages: Sequence[Stage] | None) -> Tensor:
        """The weights of one block at ``(1 - t) anchor + t source``."""

        t = point[1]
        b = self.corner(1, block, stages if t > 0 else None)
        return torch.lerp(self.corner(0, block), b, t) if t < 1 else b
