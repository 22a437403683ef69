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

from torch import Tensor

from isomerge.matching.frame import stream_crosses
from isomerge.matching.many import Graph, PairCrosses, synchronise
from isomerge.records import Json
from isomerge.solve.canonical.canonical_frame import behind, whole_alignment
from isomerge.solve.many.passes import Passes, Places
from isomerge.solve.pairs import stream_descent
from isomerge.symmetry.alignment import Alignment

# Up to so many models the descent starts from each one's star; beyond, from the lowest star after one pass.
EVERY_START = 5
# Passes from every start; the lowest goes on until it settles.
TRIAL = 4


class ManySolver(Passes):
    """Finds every model's element towards the common mean (for its arguments see `Passes`)."""

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
            "gain": {"over_best_anchor": _fraction(anchors[best], objective[-1])},
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


def _fraction(high: float, low: float) -> float:
    """By which fraction the second is lower."""
    return 1 - low / high if high > 0 else 0.0
