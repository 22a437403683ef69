"""How the loss of a merge changes with the recipe's parameters: the chain rule through the merged weights.

``dL/dv = sum_W <dL/dW, dW/dv>``: the model's gradient at the merged weights, by backpropagation, times how the
method's result changes with a parameter, by the method itself at two values. Of methods that are linear in their
weights (task arithmetic, DARE, Breadcrumbs, LiNeS) that difference is a task vector as the method has thinned it,
and exact but for rounding; of others (TIES, whose elected signs depend on the weights) it is a secant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import Fusion
from isomerge.merging.fusing import Fuser
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.recipe.dimensions import Dimension
from isomerge.observe.live.parameter_places import LivePlaces
from isomerge.pieces import PIECE
from isomerge.solve.pairs.pair import Blocks
from isomerge.symmetry.units import Unit
from isomerge.tuning.operands import Operands

STEP = 0.01
"""The share of its range by which a parameter is changed for a difference: of what is linear a larger one rounds
less, of what is not a smaller one is truer."""
NOTHING = 1e-9
"""A relative change of a parameter that is rounding alone: of a value between two of a gradient."""


class Slopes:
    """The derivatives of a loss by the dimensions of a search.

    Args:
        plan: of the merge.
        operands: the aligned models.
        dimensions: numbers.
        fusion_of: from values by name to the fusion of the recipe with them.
        start: values at which it is found which tensors depend on what.
    """

    def __init__(
        self,
        plan: MergePlan,
        operands: Operands,
        dimensions: Sequence[Dimension],
        fusion_of: Callable[[Mapping[str, Any]], Fusion],
        start: Mapping[str, Any],
    ) -> None:
        self.plan, self.operands, self.dimensions, self.fusion_of = plan, operands, dimensions, fusion_of
        self._of = self._dependences(start)
        self._colours = _coloured(dimensions, self._of)

    def __call__(
        self,
        values: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        gradients: Mapping[int, Tensor],
        places: LivePlaces,
    ) -> dict[str, float]:
        """The derivatives at some values, by the names of the dimensions.

        Args:
            values: by the names of the dimensions.
            weights: of the module that has the merged weights, under all of its names.
            gradients: of the loss, by the identity of the module's parameters; what is not there has none.
            places: where the merged tensors are in the module.

        Raises:
            IsomergeError: the method does not take a value near these.
        """
        live = {name: gradients[id(x)] for name, x in weights.items() if id(x) in gradients}
        steps = {d.name: _step(d, values[d.name]) for d in self.dimensions}
        fuser = self.plan.fuser_of(self.fusion_of(values))
        moved = [
            self.plan.fuser_of(self.fusion_of({**values, **{n: values[n] + steps[n] for n in colour}}))
            for colour in self._colours
        ]
        derivatives = dict.fromkeys(steps, 0.0)
        with torch.no_grad():
            for unit in self.plan.plan.units:
                if own := self._of[unit]:
                    self._add(derivatives, unit, own, (fuser, moved), (live, places), steps)
        return derivatives

    def _add(
        self,
        derivatives: dict[str, float],
        unit: Unit,
        own: set[str],
        fusers: tuple[Fuser, Sequence[Fuser]],
        at: tuple[Mapping[str, Tensor], LivePlaces],
        steps: Mapping[str, float],
    ) -> None:
        """Add what the weights of one unit contribute."""
        blocks, by = self.operands.blocks(unit), self.operands.moved_by(unit)
        fused = self._fused(fusers[0], unit, blocks, by)
        slopes = _slopes_of(unit, *at)
        for colour, fuser in zip(self._colours, fusers[1], strict=True):
            for name in own & set(colour):  # one at most
                there = self._fused(fuser, unit, blocks, by)
                derivatives[name] += (
                    sum(_product(slope, there[canonical], fused[canonical]) for canonical, slope in slopes.items())
                    / (steps[name])
                )

    def _fused(self, fuser: Fuser, unit: Unit, blocks: list[Blocks], by: Any) -> dict[str, Tensor]:
        """The merged tensors of a unit in the working dtype, by their canonical names."""
        fused = fuser.fuse(unit, list(blocks), by, {}, form=None)
        return {name: part for block, tensor in fused.items() for name, part in block.split(tensor)}  # pyright: ignore[reportArgumentType]

    def _dependences(self, start: Mapping[str, Any]) -> dict[Unit, set[str]]:
        """The dimensions that each unit's tensors depend on.

        Raises:
            IsomergeError: one that none does.
        """
        units, own = self.plan.plan.units, self.plan.fuser_of(self.fusion_of(start))
        before = {unit: parameters_of(own, unit) for unit in units}
        dependences: dict[Unit, set[str]] = {unit: set() for unit in units}
        for d in self.dimensions:
            moved = self.fusion_of({**start, d.name: start[d.name] + _step(d, start[d.name])})
            fuser = self.plan.fuser_of(moved)
            for unit in units:
                if _differ(before[unit], parameters_of(fuser, unit)):
                    dependences[unit].add(d.name)
        if lone := next(
            (d.name for d in self.dimensions if not any(d.name in names for names in dependences.values())), None
        ):
            raise IsomergeError(f"`{lone}` changes no tensor of the merge: leave it out of the search")
        return dependences


def _step(d: Dimension, value: float) -> float:
    """How far a parameter is moved for a difference: into its range."""
    step = STEP * (value if d.log else d.high - d.low)
    return step if value + step <= d.high else -step


def parameters_of(fuser: Fuser, unit: Unit) -> list[Any]:
    """All that the fusion of a unit's tensors depends on, beside the models."""
    return [fuser.parameters(block, number) for block in unit.blocks for number in range(len(block.canonical))]


def _differ(a: Any, b: Any) -> bool:
    """Whether parameters differ by more than rounding."""
    if isinstance(a, Mapping):
        return any(_differ(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return any(_differ(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) > NOTHING * max(abs(a), abs(b))
    return bool(a != b)


def _coloured(dimensions: Sequence[Dimension], of: Mapping[Unit, set[str]]) -> list[list[str]]:
    """The dimensions in groups such that no unit depends on two of a group, which are moved at once: as many
    differences as models, however many layers there are."""
    colours: list[list[str]] = []
    meet: dict[str, set[str]] = {}
    for names in of.values():
        for name in names:
            meet.setdefault(name, set()).update(names)
    for d in dimensions:
        free = next((colour for colour in colours if not meet[d.name] & set(colour)), None)
        if free is None:
            colours.append([d.name])
        else:
            free.append(d.name)
    return colours


def _slopes_of(unit: Unit, live: Mapping[str, Tensor], places: LivePlaces) -> dict[str, Tensor]:
    """The gradients of a unit's tensors, as they are stored; of those that the module has and uses."""
    names = [name for block in unit.blocks for name in block.canonical if name in places]
    used = [name for name in names if all(at in live for at in places.live_names([name]))]
    return {name: places.read(live, name) for name in used}


def _product(slope: Tensor, end: Tensor, start: Tensor) -> float:
    """``<slope, there - here>`` in float64, piece by piece."""
    total = 0.0
    for g, after, before in zip(*(x.reshape(-1).split(PIECE) for x in (slope, end, start)), strict=True):
        total += float(torch.dot(g.to("cpu", torch.float64), (after - before).to("cpu", torch.float64)))
    return total
