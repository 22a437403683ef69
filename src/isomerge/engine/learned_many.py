"""Learned matching of more than two models, towards a common point.

All models but the first are moved along their orbits, all at once, so that the loss falls inside the simplex that they
span: a step draws a random point of it, every second one the point that will be written. What is kept is the step whose
worst point is lowest, over the midpoints of all edges and the written point, on examples that are held out.

Memory: every model's weights in float32, one module, and the moved weights of one point.

Sources: Theus et al. 2025 (learned matching of two), Wortsman et al. 2021 (learning simplexes of networks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.engine.learned import Learned, Learner
from isomerge.engine.learning import LearnSettings, backward, shifted
from isomerge.engine.many import ManySolver
from isomerge.engine.many_units import ManyUnits
from isomerge.engine.matched_line import MatchedLine, enable_checkpointing, substituted, untied_module
from isomerge.engine.modules import parameter_names
from isomerge.errors import IsomergeError
from isomerge.matching.smooth import RiemannianAdam, SmoothElements
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.stage import Stage

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from isomerge.data.examples import Examples


@dataclass
class ManyLearned(Learned):
    """What was learned; ``each`` has one mapping of elements per model but the first."""

    each: list[dict[str, Tensor]] = field(default_factory=list)


class MatchedSimplex(MatchedLine):
    """The simplex between several models as they are matched, in the first one's canonical frame.

    Args:
        solver: a solver after `ManySolver.solve`.
        settings: device and precision.
    """

    def __init__(self, solver: ManySolver, settings: LearnSettings) -> None:
        import torch

        self.many, self.settings = solver, settings
        first = solver.models[0]
        self.module = untied_module(first, settings.device)
        self.module.requires_grad_(False)
        if settings.checkpointing:
            enable_checkpointing(self.module)
        self.names = parameter_names(self.module, first.spec)
        self.corners: list[dict[Block, Tensor]] = [{} for _ in solver.models]
        for unit in solver.units.plan.units:
            for corner, tensors in zip(self.corners, solver.placed(solver.places, unit), strict=True):
                for block, t in tensors.items():
                    if isinstance(block, Block):
                        corner[block] = t.to(settings.device, torch.float32)
        shared = {block.key for block in self.corners[0]}
        self.alone = {
            block: solver.units.folded(0, block).to(settings.device, torch.float32)
            for block in first.blocks
            if block.key not in shared and block.canonical[0] in self.names
        }

    def at(self, point: Sequence[float], stages: Sequence[Stage] | None) -> dict[str, Tensor]:
        """The weights ``sum over m of point_m (learned_m theta_m)`` by parameter name, with gradients to the stages.

        Args:
            point: barycentric coordinates, one per model, with sum one.
            stages: what has been learned of every model but the first; None for nothing.
        """
        found = {}
        for block in self.corners[0]:
            total: Tensor | None = None
            for m, weight in enumerate(point):
                if weight == 0:
                    continue
                x = self.corners[m][block]
                if stages is not None and m > 0:
                    x = x.clone()
                    stages[m - 1].act_linearly(block, x)
                total = weight * x if total is None else total + weight * x
            assert total is not None
            found |= {self.names[n]: part for n, part in block.split(total) if n in self.names}
        for block, a in self.alone.items():
            found |= {self.names[n]: part for n, part in block.split(a) if n in self.names}
        return found


class Together:
    """The learnable elements of several models, and their optimisers, behind the interface of one.

    Args:
        parts: the elements of every model but the first.
        settings: rates and steps.
    """

    def __init__(self, parts: Sequence[SmoothElements], settings: LearnSettings) -> None:
        self.parts = list(parts)
        rates = (settings.rotation_rate, settings.gauge_rate, settings.steps, min(20, settings.steps))
        self.optimisers = [RiemannianAdam(part, *rates) for part in parts]

    def state(self) -> dict[str, Tensor]:
        """All parameters, for a file."""
        return {f"{k}|{key}": x for k, part in enumerate(self.parts) for key, x in part.state().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take parameters back from `state`."""
        for part, own in zip(self.parts, self.split(state), strict=True):
            part.load(own)

    def split(self, state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        every: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for name, x in state.items():
            number, _, key = name.partition("|")
            every[int(number)][key] = x
        return every

    def solution(self) -> dict[str, Tensor]:
        """All elements in float64, exactly in their groups; keys begin with the number of their model."""
        return {f"{k}|{key}": x for k, part in enumerate(self.parts) for key, x in part.solution().items()}

    def stages(self) -> list[Stage]:
        """The elements as they act now, with gradients."""
        return [Stage(part.acting, part.elements()) for part in self.parts]


class TogetherOptimiser:
    """The optimisers of all models, in step."""

    def __init__(self, together: Together) -> None:
        self.together = together

    @property
    def step_number(self) -> int:
        """Steps taken."""
        return self.together.optimisers[0].step_number

    def step(self) -> None:
        """One step of every model."""
        for optimiser in self.together.optimisers:
            optimiser.step()

    def state(self) -> dict[str, Tensor]:
        """All moments, for a file."""
        every = enumerate(self.together.optimisers)
        return {f"{k}|{key}": x for k, optimiser in every for key, x in optimiser.state().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take a `state` back."""
        for optimiser, own in zip(self.together.optimisers, self.together.split(state), strict=True):
            optimiser.load(own)


class ManyLearner(Learner):
    """Learns the elements that lower the loss inside a simplex.

    Args:
        simplex: the simplex to start from.
        examples: what it is learned from; a part is held out to judge.
        state: where the state is kept for a run that is interrupted.
        observer: told of steps done and of the current loss.

    Raises:
        IsomergeError: nothing continuous is matched, or labels are asked for where there are none.
    """

    def __init__(
        self, simplex: MatchedSimplex, examples: Examples, state: Path, observer: Callable[[str, int, int], None]
    ) -> None:
        settings = simplex.settings
        self.line, self.observer, self.state, self.settings = simplex, observer, state, settings
        self.prepare(examples)
        self.simplex, units = simplex, simplex.many.units
        self._start(units, settings)
        self.points = judged_points(units.shares)

    def _start(self, units: ManyUnits, settings: LearnSettings) -> None:
        """Identities of every continuous space, for every model but the first."""
        keys = [k for unit in units.plan.units if units.is_matched(unit) for k in unit.elements]
        keys = [*dict.fromkeys(k for k in keys if not k.startswith("shift."))]
        spec = (Alignment(units.frame) @ Alignment(units.local)).spec
        wanted = [*units.frame.streams, *keys]
        parts = [
            SmoothElements(spec, wanted, settings.device, permutations=settings.permutations)
            for _ in self.simplex.corners[1:]
        ]
        if not parts[0].parameters():
            raise IsomergeError("nothing can be learned: no continuous space is chosen; add some with --spaces")
        self.together = Together(parts, settings)
        self.elements: Any = self.together
        self.optimiser: Any = TogetherOptimiser(self.together)

    def wanted(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """The mean of all models' predictions, where these are the target."""
        import torch

        if self.target == "labels":
            return None
        shares, total = self.simplex.many.units.shares, None
        with torch.no_grad():
            for m, share in enumerate(shares):
                corner = [float(k == m) for k in range(len(shares))]
                with substituted(self.simplex.module, self.simplex.at(corner, None)):
                    found = share * self.simplex.logits(batch).softmax(-1)
                total = found if total is None else total + found
        return total

    def judge(self) -> dict[str, Any]:
        """The loss at the judged points in excess of the models' own, and its maximum; on the held-out examples."""
        import torch

        count = len(self.simplex.corners)
        with torch.no_grad():
            stages = self.together.stages()
            ends = [self._loss_at([float(k == m) for k in range(count)], stages) for m in range(count)]
            excess = []
            for point in self.points:
                chord = sum(w * end for w, end in zip(point, ends, strict=True))
                excess.append(self._loss_at(point, stages) - chord)
        return {"excess": excess, "barrier": max(excess), "midpoint": excess[-1]}

    def _loss_at(self, point: Sequence[float], stages: Sequence[Stage]) -> float:
        total, count = 0.0, 0
        with substituted(self.simplex.module, self.simplex.at(point, stages)):
            for batch, wanted in self.judged:
                n = len(next(iter(batch.values())))
                total, count = total + float(self.loss(batch, wanted)) * n, count + n
        return total / count

    def _step(self, number: int, batch: Mapping[str, Tensor]) -> None:
        import torch

        rng = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        shares = self.simplex.many.units.shares
        point = list(shares) if number % 2 == 0 else random_point(len(shares), rng)
        if self.settings.shifts:
            batch = shifted(batch, rng)
        wanted = self.wanted(batch)
        with substituted(self.simplex.module, self.simplex.at(point, self.together.stages())):
            loss = self.loss(batch, wanted)
            if not bool(loss.isfinite()):
                raise IsomergeError(
                    f"learning diverged at step {number} (loss {float(loss)}): learn with --precision float32, or give other data"
                )
            backward(loss)
        self.optimiser.step()
        self.observer(f"learning, loss {float(loss.detach()):.3f}", number + 1, self.settings.steps)

    def run(self) -> ManyLearned:
        """Learn; an interrupted run goes on where its state was saved."""
        found = super().run()
        each = self.together.split(found.elements)
        return ManyLearned(found.elements, {**found.report, "points": self.points}, each)


def judged_points(shares: Sequence[float]) -> list[list[float]]:
    """Barycentric coordinates of the midpoints of all edges, and last of the point that will be written."""
    count = len(shares)
    edges = [[0.5 * (k in pair) for k in range(count)] for pair in combinations(range(count), 2)]
    return [*edges, list(shares)]


def random_point(count: int, rng: Generator) -> list[float]:
    """A point of the simplex, uniform (Dirichlet with all parameters one), half way to the barycentre.

    Corners need no learning: there the models are themselves.
    """
    import torch

    gaps = torch.rand(count, generator=rng, dtype=torch.float64).clamp_min(1e-12).log().neg()
    drawn = gaps / gaps.sum()
    return [0.5 * float(w) + 0.5 / count for w in drawn]
