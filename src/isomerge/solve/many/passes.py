"""Passes over many models: one unit of all of them at a time, matched inside, its cross-Grams gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from isomerge.matching.frame import stream_crosses
from isomerge.matching.many import Graph, PairCrosses, mean_of_others
from isomerge.models.unit_plan import with_progress
from isomerge.observe.live.accelerator import on
from isomerge.progress import Observer
from isomerge.solve.canonical.canonical_units import CanonicalUnits, Tensors, moved
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import Unit

# Rounds in a unit from every start; the lowest goes on until it settles.
TRIAL_ROUNDS = 4
# Rounds over the models inside a unit where no stream turns, and in every pass where one does. A round is the last
# when
# it moves the models by less than this fraction of their squared distances: twins of other gauges then end alike.
ROUNDS, ROUNDS_PER_PASS = 60, 2
STILL = 1e-11
# Of a squared distance in float32 that two summations of the same numbers may differ by.
ROUNDING = 1e-8
# A unit's restart must be lower by this fraction to be taken.
LOWER = 1e-6


@dataclass
class Places:
    """Where every model is: the elements that act on its canonical form."""

    turns: list[Alignment]
    """Of the residual streams."""
    inner: list[dict[str, dict[str, Tensor]]]
    """Block-local elements by unit and key."""
    votes: list[dict[str, Tensor]]
    """Stack-wide elements by space."""

    def to(self, device: str) -> Places:
        """The same places with their elements on a device."""
        return Places(
            [turn.to(device) for turn in self.turns],
            [{unit: on(device, elements) for unit, elements in x.items()} for x in self.inner],
            [on(device, x) for x in self.votes],
        )

    def copy(self) -> Places:
        """A copy that can be moved on; elements are shared, they are never changed in place."""
        return Places(list(self.turns), [dict(x) for x in self.inner], [dict(x) for x in self.votes])


class Passes:
    """Moves models unit by unit towards those that they are compared with.

    Args:
        units: the models' units.
        observer: told of progress, and of the objective as it falls.
    """

    def __init__(self, units: CanonicalUnits, observer: Observer) -> None:
        self.units, self.observer = units, observer
        self.frame, self.local = units.frame, units.local
        self.models = units.models
        for unit in units.plan.units:  # weights and norms of everything, before the first distance
            units.canonical(unit)
        self.order = units.canonical_order()
        self.complete = Graph.complete(self.order, units.shares)
        self.places = self.stored()

    def stored(self) -> Places:
        """All models where they are."""
        spec, every = self.local, range(len(self.models))
        stay = {n: spec.spaces[n].group.identity((), spec.sizes[n]) for n in self.units.plan.votes}
        return Places([Alignment(self.frame) for _ in every], [{} for _ in every], [dict(stay) for _ in every])

    # -------------------------------------------------------------------- a pass

    def element(self, places: Places, m: int, unit: Unit) -> Alignment:
        """The block-local element of one model in one unit."""
        votes = {name: places.votes[m][name] for name in unit.votes if name in places.votes[m]}
        elements = {**places.inner[m].get(unit.key, {}), **votes} if self.units.plan.is_matched(unit) else {}
        return Alignment(self.local, elements)

    def turned(self, places: Places, unit: Unit) -> list[Tensors]:
        """A unit of every model with the streams turned."""
        return [moved(turn, x) for turn, x in zip(places.turns, self.units.canonical(unit), strict=True)]

    def placed(self, places: Places, unit: Unit, turned: Sequence[Tensors] | None = None) -> list[Tensors]:
        """A unit of every model where it is."""
        turned = self.turned(places, unit) if turned is None else turned
        return [moved(self.element(places, m, unit), y) for m, y in enumerate(turned)]

    def spread(self, graph: Graph, placed: Sequence[Tensors]) -> float:
        """The unit's part of the objective: the weighted squared distances of the graph's pairs."""
        return sum(w * self.units.distance(placed[i], placed[k]) for (i, k), w in graph.weights.items())

    def sweep(
        self, places: Places, graph: Graph, movable: Sequence[int], label: str, *, restart: bool = False
    ) -> tuple[float, float, PairCrosses]:
        """One pass: block-local elements of every unit, in place; the objective before and after, and
        cross-Grams."""
        plan, before, after = self.units.plan, 0.0, 0.0
        crosses: PairCrosses = {}
        if plan.votes:
            for m in movable:
                self._vote(places, graph, m)
        for unit in with_progress(self.models[0], plan.units, self.observer, f"{label}: "):
            turned = self.turned(places, unit)
            placed = self.placed(places, unit, turned)
            start = value = self.spread(graph, placed)
            if movable and self.units.plan.is_matched(unit) and unit.elements:
                if restart:
                    placed = self._restart(places, unit, turned, placed)
                rounds = ROUNDS if not plan.selection.streams else ROUNDS_PER_PASS
                placed, value = self._settle(places, unit, turned, placed, graph, movable, rounds)
            before, after = before + start, after + value
            for i, k in graph.moving(movable):
                leaves = self.units.leaves(placed[i], placed[k])
                for stream, cross in stream_crosses(self.frame, leaves).items():
                    held = crosses.setdefault((i, k), {})
                    held[stream] = held.get(stream, 0) + cross
        return before, after, crosses

    def _settle(
        self, places: Places, unit: Unit, turned: Sequence[Tensors], placed: Sequence[Tensors], graph: Graph,
        movable: Sequence[int], rounds: int,
    ) -> tuple[list[Tensors], float]:  # fmt: skip
        """Match each model of one unit onto the mean of those it is compared with, in turn, until nothing gains."""
        placed = list(placed)
        for _ in range(rounds if graph.couples(movable) else 1):
            shift, apart = 0.0, 0.0
            for m in movable:
                if not graph.others(m):
                    continue
                aim = mean_of_others(graph, m, placed)
                kept = places.inner[m].get(unit.key, {})
                places.inner[m][unit.key] = self._solution(places, unit, m, aim, turned[m])
                trial = moved(self.element(places, m, unit), turned[m])
                distance = self.units.distance(aim, placed[m])
                apart += distance
                if self.units.distance(aim, trial) <= distance * (1 + ROUNDING):
                    shift += self.units.distance(trial, placed[m])
                    placed[m] = trial
                else:
                    places.inner[m][unit.key] = kept
            if shift <= STILL * apart:
                break
        value = self.spread(graph, placed)
        return placed, value

    def _solution(self, places: Places, unit: Unit, m: int, aim: Tensors, turned: Tensors) -> dict[str, Tensor]:
        votes = {name: places.votes[m][name] for name in unit.votes}
        return self.units.solution(aim, turned, votes).elements

    def _restart(
        self, places: Places, unit: Unit, turned: Sequence[Tensors], placed: list[Tensors]
    ) -> list[Tensors]:
        """The best of a unit's descents from where it is and from all stars; units are apart where no stream
        turns."""
        settled, lowest = self._settle(places, unit, turned, placed, self.complete, self.order, TRIAL_ROUNDS)
        best = (settled, [dict(x) for x in places.inner])
        for centre in self.order:
            for x in places.inner:
                x.pop(unit.key, None)
            others = [m for m in self.order if m != centre]
            settled = self.placed(places, unit, turned)
            settled, _ = self._settle(places, unit, turned, settled, self.complete.only([centre]), others, 1)
            settled, reached = self._settle(places, unit, turned, settled, self.complete, self.order, TRIAL_ROUNDS)
            if reached < lowest * (1 - LOWER):
                lowest, best = reached, (settled, [dict(x) for x in places.inner])
        places.inner = best[1]
        return best[0]

    def _vote(self, places: Places, graph: Graph, m: int) -> None:
        """Decide one model's stack-wide spaces, and what lies over them, where that brings it nearer to the
        others."""
        units = [unit for unit in self.units.plan.units if unit.votes and self.units.plan.is_matched(unit)]
        profits: dict[str, Tensor] = {}
        for unit in units:
            turned = self.turned(places, unit)
            aim = mean_of_others(graph, m, self.placed(places, unit, turned))
            for name in unit.votes:
                profits[name] = profits.get(name, 0) + self.units.vote(aim, turned[m], name)
        trial = places.copy()
        trial.votes[m] |= {n: self.local.spaces[n].group.solve(p)[0] for n, p in profits.items()}
        gain = 0.0
        for unit in units:
            turned = self.turned(places, unit)
            placed = self.placed(places, unit, turned)
            aim = mean_of_others(graph, m, placed)
            trial.inner[m][unit.key] = self._solution(trial, unit, m, aim, turned[m])
            there = moved(self.element(trial, m, unit), turned[m])
            gain += self.units.distance(aim, placed[m]) - self.units.distance(aim, there)
        if gain > 0:
            places.inner[m], places.votes[m] = trial.inner[m], trial.votes[m]
