"""The simplex between matched models, as weights that a live module can be given.

A point is given by barycentric coordinates, one per model, with sum one. All models are in the first one's
canonical frame (gains folded, gauges balanced), and all but the first are moved by what has been learned.

Memory: every model's weights in float32, one module, and the moved weights of one point with their gradients. Where
activations are recomputed, layers ask for their weights when they compute (`isomerge.observe.live.substitution`):
then it is every model's weights, in the precision in which the model runs, and one layer of all else.

Source: Wortsman et al. 2021 (learning simplexes of networks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Generator, Tensor

from isomerge.models.recognised import Model
from isomerge.models.unit_plan import Plan
from isomerge.observe.live.parameter_places import places_of
from isomerge.observe.live.substitution import ask_for_weights, layers_of, substituted, untied_module
from isomerge.observe.losses import logits_of
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.many.mean_solver import ManySolver
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import Stage

PATH = (0.25, 0.4, 0.5, 0.6, 0.75)
"""The points at which a line is judged: its maximum counts. A look costs as much as some steps of learning."""


class MatchedSimplex:
    """The simplex between several models as they are matched.

    Args:
        plan: of the match.
        first: the model whose module is run.
        units: of every unit, the blocks of each model in the canonical frame; what is no number is left out.
        folded: reads a block of the first model with gains folded, for blocks that the others lack.
        shares: how much every model counts: the point that is written, and the mean of the models' predictions.
        settings: device and precision.
    """

    def __init__(
        self,
        plan: Plan,
        first: Model,
        units: Iterable[Sequence[Mapping[Any, Tensor]]],
        folded: Callable[[Block], Tensor],
        shares: Sequence[float],
        settings: LearnSettings,
    ) -> None:
        self.plan, self.settings, self.shares = plan, settings, list(shares)
        self.module = untied_module(first, settings.device)
        self.module.requires_grad_(False)
        self.places = places_of(self.module, first)
        half = settings.checkpointing and settings.precision == "bfloat16"
        self.kept = torch.bfloat16 if half else torch.float32
        self.layers: dict[str, list[Block]] = {}
        """The blocks that layers ask for when they compute, by the layers' names in the module."""
        self.stands: list[Callable[[Iterable[Block]], dict[str, Tensor]]] = []
        """What gives the weights where the module stands now, last; one list of all simplexes of a module."""
        if settings.checkpointing:
            self._ask_in_layers(first.blocks)
        self.corners: list[dict[Block, Tensor]] = [{} for _ in self.shares]
        for unit in units:
            for corner, tensors in zip(self.corners, unit, strict=True):
                for block, t in tensors.items():
                    if isinstance(block, Block) and t.is_floating_point():
                        corner[block] = self._placed(t)
        shared = {block.key for block in self.corners[0]}
        self.alone = {
            block: self._placed(folded(block))
            for block in first.blocks
            if block.key not in shared and block.canonical[0] in self.places
        }
        asked = {block for blocks in self.layers.values() for block in blocks}
        self.outside = [block for block in (*self.corners[0], *self.alone) if block not in asked]
        """The blocks that the module is given whenever it stands somewhere."""

    def _ask_in_layers(self, blocks: Iterable[Block]) -> None:
        """Have layers ask for their weights: those of which every tensor lies in one layer alone. The module lets
        them go before the models are placed."""
        live = {block: {*self.places.live_names(block.canonical)} for block in blocks}
        layers = layers_of(self.module, {name for names in live.values() for name in names})
        for name, weights in layers.items():
            self.layers[name] = [block for block, names in live.items() if names and names <= weights]
        asked = {name: {n for block in blocks for n in live[block]} for name, blocks in self.layers.items()}
        ask_for_weights(self.module, asked, self._of_layer)

    def _of_layer(self, name: str) -> dict[str, Tensor]:
        """The weights of a layer where the module stands now, by their names in it."""
        return {live.removeprefix(f"{name}."): t for live, t in self.stands[-1](self.layers[name]).items()}

    @classmethod
    def of(cls, solver: ManySolver, settings: LearnSettings) -> MatchedSimplex:
        """The simplex between the models of a solver after `ManySolver.solve`."""
        units, first = solver.units, solver.models[0]
        placed = (solver.placed(solver.places, unit) for unit in units.plan.units)
        return cls(units.plan, first, placed, lambda block: units.folded(0, block), units.shares, settings)

    def joining(self, m: int, stages: Sequence[Stage]) -> MatchedSimplex:
        """The line from the mean of the first ``m`` models, moved by ``stages``, to the next one, in the same
        module."""
        before, share = sum(self.shares[:m]), self.shares[m]
        with torch.no_grad():
            weights = [weight / before for weight in self.shares[:m]]
            mean = {block: self.mixed(block, weights, stages) for block in self.corners[0]}
        line = copy(self)
        line.corners = [mean, self.corners[m]]
        line.shares = [before / (before + share), share / (before + share)]
        return line

    def gently(self, factor: float) -> MatchedSimplex:
        """The same, learned at rates so many times as high."""
        how = self.settings
        gentle = copy(self)
        gentle.settings = replace(how, rotation_rate=factor * how.rotation_rate, gauge_rate=factor * how.gauge_rate)
        return gentle

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.settings.device, self.kept)

    def learnable(self) -> tuple[Spec, list[str]]:
        """The spec of all spaces that are matched, and the keys of their elements, shifts left out."""
        local = self.plan.selection.inner
        frame = self.plan.selection.frame or local
        keys = [k for unit in self.plan.units if self.plan.is_matched(unit) for k in unit.elements]
        keys = [k for k in dict.fromkeys(keys) if ElementKey.of(k).name in local.spaces]
        return (Alignment(frame) @ Alignment(local)).spec, [*frame.streams, *keys]

    # ------------------------------------------------------------------ points

    def points(self) -> list[list[float]]:
        """Where the simplex is judged; the point that is written is one of them."""
        return judged_points(self.shares)

    def drawn(self, rng: Generator) -> list[float]:
        """A point to learn at."""
        return random_point(len(self.shares), rng)

    @contextmanager
    def standing_at(self, point: Sequence[float], stages: Sequence[Stage] | None) -> Iterator[None]:
        """While it lasts, the module has the weights ``sum over m of point_m (learned_m theta_m)``, with gradients
        to the stages; in the backward pass as well.

        Args:
            point: barycentric coordinates.
            stages: what has been learned of every model but the first; None for nothing.
        """
        self.stands.append(partial(self._live, point=point, stages=stages))
        try:
            with substituted(self.module, self.stands[-1](self.outside)):
                yield
        finally:
            self.stands.pop()

    def _live(
        self, blocks: Iterable[Block], point: Sequence[float], stages: Sequence[Stage] | None
    ) -> dict[str, Tensor]:
        """Some blocks at a point, by the module's names."""
        tensors: dict[str, Tensor] = {}
        for block in blocks:
            tensor = self.alone[block].float() if block in self.alone else self.mixed(block, point, stages)
            tensors |= dict(block.split(tensor))
        return self.places.live(tensors)

    def mixed(self, block: Block, point: Sequence[float], stages: Sequence[Stage] | None) -> Tensor:
        """The weights of one block at a point."""
        total: Tensor | None = None
        for m, weight in enumerate(point):
            if weight:
                x = weight * self.corner(m, block, stages)
                total = x if total is None else total + x
        assert total is not None
        return total

    def corner(self, m: int, block: Block, stages: Sequence[Stage] | None = None) -> Tensor:
        """One model's block in float32, moved by what has been learned; not to be changed."""
        x = self.corners[m][block].float()
        if stages is None or m == 0:
            return x
        stages[m - 1].act_linearly(block, x := x.clone())
        return x

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The module's logits with the weights that are substituted now."""
        half = self.settings.precision == "bfloat16"
        kind = torch.device(self.settings.device).type
        with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
            return logits_of(self.module, batch).float()


def judged_points(shares: Sequence[float]) -> list[list[float]]:
    """Barycentric coordinates of the midpoints of all edges, and last of the point that will be written, if it is
    none."""
    count = len(shares)
    edges = [[0.5 * (k in pair) for k in range(count)] for pair in combinations(range(count), 2)]
    return [*(edge for edge in edges if edge != list(shares)), list(shares)]


def random_point(count: int, rng: Generator) -> list[float]:
    """A point of the simplex, uniform (Dirichlet with all parameters one), half way to the barycentre.

    Corners need no learning: there the models are themselves.
    """
    gaps = torch.rand(count, generator=rng, dtype=torch.float64).clamp_min(1e-12).log().neg()
    drawn = gaps / gaps.sum()
    return [0.5 * float(w) + 0.5 / count for w in drawn]


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
