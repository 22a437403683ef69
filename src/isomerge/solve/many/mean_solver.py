"""Matching more than two models without an anchor: all onto their common mean.

Every model is in its canonical frame (gains folded, gauges balanced), where all that is left to find keeps lengths.
There the sum over all models of ``w_m |g_m theta_m - U|^2``, with U their weighted mean, is lowered by block
coordinate descent (see `isomerge.matching.many`): each pass solves the block-local elements of every unit, model
after model, and gathers the cross-Grams of all pairs for the residual stream_descent. The descent starts from every
model's star (all others matched onto it), so it ends no higher than the best anchor. Alignments between two models
are ``g_i^-1 g_j``: around a cycle they compose to the identity. The result is given in the coordinates of the first
model; another choice moves all models by one and the same element, and the mean with them: the function does not
depend on it.

Sources: Gower 1975 and ten Berge 1977 (generalised Procrustes analysis), Crisostomi et al. 2024 (C2M3: permutations
to a universe, cycle-consistent), Theus et al. 2025 (matching many transformers to a universe).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from isomerge.matching.frame import stream_crosses
from isomerge.matching.many import Graph, PairCrosses, mean_of_others, synchronise
from isomerge.models.unit_plan import with_progress
from isomerge.observe.live.accelerator import on
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.solve.canonical.canonical_frame import behind, whole_alignment
from isomerge.solve.canonical.canonical_units import CanonicalUnits, Tensors, moved
from isomerge.solve.pairs import stream_descent
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import Unit

# Up to so many models the descent starts from each one's star; beyond, from the lowest star after one pass.
EVERY_START = 5
# Passes from every start; the lowest goes on until it settles.
TRIAL = 4
ROUNDS_RELATED = 2
"""After how many rounds over a unit nothing gains any more, where models are related."""
STARTS = 4
"""Passes that choose between the two starts of residual streams."""
# Rounds in a unit from every start; the lowest goes on until it settles.
TRIAL_ROUNDS = 4
# Rounds over the models inside a unit where no stream turns, and in every pass where one does. A round is the last
# when it moves the models by less than this fraction of their squared distances: twins of other gauges then end
# alike.
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


class ManySolver:
    """Finds every model's element towards the common mean, unit by unit.

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

    # ------------------------------------------------------------------- descents

    def descend(
        self, places: Places, graph: Graph, movable: Sequence[int], label: str, *, sweeps: int | None = None,
        restart: bool = False,
    ) -> tuple[Places, list[float]]:  # fmt: skip
        """Passes until the objective settles; the places, and the objective at the start and after every pass."""
        objective: list[float] = []
        places, best = places.copy(), places
        for number in range(stream_descent.SWEEPS if sweeps is None else sweeps):
            what = f"{label}, sweep {number + 1}" + (f", objective {objective[-1]:.5g}" if objective else "")
            before, after, crosses = self.sweep(places, graph, movable, what, restart=restart and number == 0)
            objective = objective or [before]
            if after > objective[-1]:  # rounding, once nothing is left to gain
                break
            best = places.copy()
            objective.append(after)
            steps, gain = synchronise(self.frame, crosses, graph, movable)
            loose = gain > 0 or bool(self.units.plan.votes and graph.couples(movable))
            if not loose or (number and objective[-2] - after <= stream_descent.SETTLED * after):
                break
            for m, step in enumerate(steps):
                if step:
                    further = Alignment(self.frame, step)
                    places.turns[m] = further @ places.turns[m]
                    inner = {unit: Alignment(self.local, g) for unit, g in places.inner[m].items()}
                    places.inner[m] = {unit: behind(further, g).elements for unit, g in inner.items()}
        return best, objective

    def begin(self, places: Places, graph: Graph, movable: Sequence[int], kind: str) -> Places:
        """Start some models afresh: their streams by embeddings and heads (``shared``) or as they are
        (``identity``)."""
        fresh, places = self.stored(), places.copy()
        for m in movable:
            places.turns[m], places.inner[m], places.votes[m] = fresh.turns[m], fresh.inner[m], fresh.votes[m]
        if kind == "shared":
            crosses: PairCrosses = {}
            for unit in self.units.plan.units:
                if self.units.activations is None and all(block.scope for block in unit.blocks):
                    continue
                turned = self.turned(places, unit)
                for i, k in graph.moving(movable):
                    leaves = self.units.leaves(turned[i], turned[k], shared=True)
                    for stream, cross in stream_crosses(self.frame, leaves).items():
                        held = crosses.setdefault((i, k), {})
                        held[stream] = held.get(stream, 0) + cross
            for m, step in enumerate(synchronise(self.frame, crosses, graph, movable)[0]):
                if step:
                    places.turns[m] = Alignment(self.frame, step) @ places.turns[m]
        return places

    def onto(
        self, places: Places, graph: Graph, movable: Sequence[int], label: str, *, sweeps: int | None = None
    ) -> Places:
        """Match models onto others that stay, from the lower of both starts after one pass."""
        kinds = ("shared", "identity") if self.frame.streams and self.units.plan.selection.frame else ("identity",)
        starts = []
        for kind in kinds:
            start = self.begin(places, graph, movable, kind)
            reached, objective = self.descend(start, graph, movable, f"{label}, start {kind}", sweeps=2)
            starts.append((objective[-1], reached))
        best = min(starts, key=lambda pair: pair[0])[1]
        return best if sweeps == 1 else self.descend(best, graph, movable, label)[0]

    def objective(self, places: Places) -> float:
        """The sum over all models of the squared distances to the mean, weighted."""
        return self.sweep(places, self.complete, (), "objective")[1]

    def star(self, centre: int, *, sweeps: int | None = None) -> Places:
        """All models matched onto one anchor."""
        others = [m for m in self.order if m != centre]
        label = f"onto {self.models[centre].ref}"
        return self.onto(self.stored(), self.complete.only([centre]), others, label, sweeps=sweeps)

    def solve(self) -> Json:
        """Find the places, first model at its own; returns the report."""
        every = len(self.order) <= EVERY_START
        stars = {m: self.star(m, sweeps=None if every else 1) for m in self.order}
        anchors = {m: self.objective(places) for m, places in stars.items()}
        best = min(self.order, key=lambda m: anchors[m])
        apart = not self.units.plan.selection.streams
        runs: dict[int, tuple[Places, list[float]]] = {}
        for m in self.order if every and not apart else [best]:
            label = f"common mean, from {self.models[m].ref}"
            runs[m] = self.descend(stars[m], self.complete, self.order, label, sweeps=TRIAL, restart=apart)
        start = min(runs, key=lambda m: runs[m][1][-1])  # the first in the canonical order, where equal
        places, objective = runs[start]
        if len(objective) > TRIAL and (not apart or self.units.plan.votes):  # units alone have settled
            places, further = self.descend(places, self.complete, self.order, "common mean")
            objective = [*objective, *further[1:]]
            runs[start] = (places, objective)
        self.places = self.normalised(places)
        return {
            "objective": objective,
            "start": self.models[start].ref,
            "anchors": [
                {"model": model.ref, "objective": anchors[m], "reached": runs[m][1][-1] if m in runs else None}
                for m, model in enumerate(self.models)
            ],
            "gain": {"over_best_anchor": 1 - objective[-1] / anchors[best] if anchors[best] > 0 else 0.0},
            "shares": list(self.units.shares),
            "dead": sorted(self.units.dead),
            "groups": {} if apart else self.frame.stream_groups,
        }

    def normalised(self, places: Places) -> Places:
        """The same places with all models moved by one element, so that the first stays where it is."""
        back = places.turns[0].inverse()
        moved = Places([back @ turn for turn in places.turns], [{} for _ in self.models], [{} for _ in self.models])
        for unit in self.units.plan.units:
            if self.units.plan.is_matched(unit):
                first = self.element(places, 0, unit).inverse()
                for m in range(1, len(self.models)):
                    moved.inner[m][unit.key] = behind(back, first @ self.element(places, m, unit)).elements
        moved.turns[0] = Alignment(self.frame)
        return moved

    def alignment(self, m: int, learned: Mapping[str, Tensor] | None = None) -> Alignment:
        """The element that brings one model into the first one's own coordinates, after `solve`.

        ``learned`` are elements that act after the solver's own, in the first model's canonical frame.
        """
        units, place = self.units, self.places
        elements = [
            (unit, self.element(place, m, unit), [units.gauges(unit)[k] for k in (0, m)])
            for unit in units.plan.units
            if units.plan.is_matched(unit)
        ]
        folds = [units.folds[k] for k in (0, m)]
        return whole_alignment(self.frame, self.local, elements, place.turns[m], folds, learned)


@dataclass(frozen=True)
class Effort:
    """What the common mean takes, in matchings of one model onto others and in passes over all models: how much
    longer it is than matching onto one anchor (see `ManySolver.solve`)."""

    matchings: float
    """How often one model is matched onto others; ``count - 1`` onto one anchor, times its passes with residual
    streams."""
    related: float
    """The same of related models."""
    passes: float
    """How often all models are gone through."""


def mean_effort(count: int, settled: int | None) -> Effort:
    """The effort of the descents to every star and from the best of them.

    Args:
        count: how many models there are.
        settled: passes after which residual streams settle, as a rule of thumb; None: no stream turns, and units
            settle apart.
    """
    others, every = count - 1, count <= EVERY_START
    if settled is not None:
        star = STARTS + (settled if every else 0)
        mean = settled + (count * TRIAL if every else TRIAL)
        matchings = float(others * count * star + count * mean)
        return Effort(matchings, matchings, float(count * (star + 1) + mean))
    star = 2 if every else 1
    in_stars = others * count * star
    related, unrelated = (
        in_stars + count * rounds + count * (others + count * rounds)
        for rounds in (ROUNDS_RELATED, min(TRIAL_ROUNDS, count))
    )
    return Effort(float(unrelated), float(related), float(count * (star + 1) + 3))
