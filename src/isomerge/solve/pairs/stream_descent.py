"""Matching the residual stream: passes over two models that never hold more than one unit of each.

Gains are folded and every unit is moved to its canonical gauge, where all that is left to find keeps lengths. There

    f(R, g) = sum over tensors of w |A - R g B|^2

is lowered by block coordinate descent: each pass solves the block-local elements g of every unit with R as it is,
and gathers one cross-Gram [d, d] per stream on the way, whose solution is the best R for these g. f never rises. R
starts from what has a shared meaning: embeddings of tokens, positions and patches, and heads.

With activations, the norms' outputs have it as well. Streams that none of these determine follow: permuted ones,
those of a tower behind a convolution, by the norms of their coordinates; then those that turn between linear maps,
by the stream on a map's other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from isomerge.matching.frame import (
    WeightedLeaf,
    stream_crosses,
    streams_alone,
    streams_beside,
    streams_by_grams,
    streams_by_norms,
    unknown_directions,
)
from isomerge.models.unit_plan import with_progress
from isomerge.observe.live.accelerator import CPU, computing_on, on
from isomerge.observe.stats.taps import Activations
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.solve.canonical.canonical_frame import behind, whole_alignment
from isomerge.solve.canonical.canonical_units import CanonicalUnits, Tensors, moved, weights_of
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

# A sweep that lowers the objective by less than this fraction is the last: far below any effect on the merged
# model.
SETTLED = 1e-5
SWEEPS = 40
# Of the objective as it began: what is left of a twin (squares of the dtype's rounding, a hundred times over).
ROUNDING_IN_FLOAT32, ROUNDING_IN_FLOAT64 = 1e-12, 1e-28
# Of the same, in float64: a score is a sum over all tensors, so that a difference of two shows nothing below its
# rounding.
# A search in float32 has ended there.
NEAR = 1e-12
# A search whose objective falls to this part of itself in a sweep is on its way to a twin.
FALLS = 0.5


@dataclass
class StreamSolution:
    """A solution: the element of the whole model, and a report, with the objective after every half step."""

    alignment: Alignment
    report: Json = field(default_factory=dict)


class StreamSolver:
    """Finds the residual stream's elements together with the block-local ones.

    Args:
        pair: the two models and the plan over their shared blocks; ``plan.selection.frame`` must be set.
        observer: told of progress, and of the objective as it falls.
        activations: centred ones of the anchor and of the source, each in its own coordinates.
        evidence: with activations, what counts: a key of `isomerge.solve.match_options.SHARES`.
    """

    def __init__(
        self,
        pair: PairSolver,
        observer: Observer,
        activations: tuple[Activations, Activations] | None = None,
        evidence: str = "both",
    ) -> None:
        self.pair, self.observer = pair, observer
        models, by_anchor = (pair.anchor, pair.source), (1.0, 0.0)
        self.units = CanonicalUnits(
            models, pair.plan, pair.dtype, by_anchor, activations, evidence, to_gauge=pair.to_gauge, room=pair.room
        )
        self.frame, self.local = self.units.frame, self.units.local
        self.turn = Alignment(self.frame)
        self.inner: dict[str, dict[str, Tensor]] = {}
        self.votes: dict[str, Tensor] = {}

    # ------------------------------------------------------------------ passes

    def starts(self) -> dict[str, Alignment]:
        """Turns of the streams from which to begin: from what has a shared meaning (see `shared_starts`), and the
        streams as they are (``identity``)."""
        starts = {"identity": Alignment(self.frame)}
        if not self.frame.streams:
            return starts
        return shared_starts(self.units, self.pair.plan.units, self.pair.anchor.blocks) | starts

    def sweep(self, label: str = "", *, near: bool = False) -> tuple[float, float, dict[str, Tensor]]:
        """One pass: block-local elements of every unit; returns f before and after the streams would follow, and
        how.

        ``near``: f is less than a difference of scores can show, so that every stream follows, and the next pass
        measures it.
        """
        if self.pair.plan.votes:
            self._vote()
        value = 0.0
        crosses: dict[str, Tensor] = {}
        for unit in with_progress(self.pair.anchor, self.pair.plan.units, self.observer, label):
            moved = self.matched_unit(unit)
            value += self.units.distance(moved.anchor, moved.source)
            leaves = self.units.leaves(moved.anchor, moved.source)
            for stream, cross in stream_crosses(self.frame, leaves).items():
                crosses[stream] = crosses.get(stream, 0) + cross
        gain = 0.0
        steps: dict[str, Tensor] = {}
        for stream, cross in crosses.items():
            group = self.frame.spaces[stream].group
            step, score = group.solve(cross)
            stay = group.contract(group.identity((), cross.shape[-1]), cross)
            if float(score - stay) > 0 or near:
                gain += max(2 * float(score - stay), 0.0)
                steps[stream] = step
        return value, max(value - gain, 0.0), steps  # less than nothing is left only by rounding

    def turned_unit(self, unit: Unit) -> UnitPair:
        """The unit with the source's streams turned and nothing matched inside."""
        return UnitPair(*self.units.canonical(unit)).moved(self.turn)

    def matched_unit(self, unit: Unit) -> UnitPair:
        """The unit with the source turned and matched inside (by the better of the new elements and the old)."""
        turned = self.turned_unit(unit)
        if not self.pair.plan.is_matched(unit):
            return turned
        votes = {name: self.votes[name] for name in unit.votes}
        matched = self.units.solution(turned.anchor, turned.source, votes).elements
        best, distance = turned, float("inf")
        for elements in (matched, self.inner.get(unit.key)):
            if elements is None:
                continue
            trial = turned.moved(self._inner(elements))
            there = self.units.distance(trial.anchor, trial.source)
            if there < distance:
                best, distance, self.inner[unit.key] = trial, there, elements
        return best

    def placed_unit(self, unit: Unit) -> UnitPair:
        """The unit with the source turned and matched inside as it stands now; nothing is solved."""
        turned = self.turned_unit(unit)
        elements = self.inner.get(unit.key)
        return turned if elements is None else turned.moved(self._inner(elements))

    def _inner(self, elements: Mapping[str, Tensor]) -> Alignment:
        """A unit's elements; stack-wide ones replace what an older solution had of them."""
        votes = self.votes
        return Alignment(self.local, {**elements, **{name: votes[name] for name in elements if name in votes}})

    def _vote(self) -> None:
        """Decide the stack-wide spaces with the streams as they are."""
        profits: dict[str, Tensor] = {}
        for unit in self.pair.plan.units:
            if not unit.votes:
                continue
            turned = self.turned_unit(unit)
            for name in unit.votes:
                profits[name] = profits.get(name, 0) + self.units.vote(turned.anchor, turned.source, name)
        self.votes = {n: self.local.spaces[n].group.solve(p)[0] for n, p in profits.items()}

    # ------------------------------------------------------------------ descent

    def solve(self, sweeps: int | None = None) -> StreamSolution:
        """Descend from every start for one sweep, then from the lower one until f settles, for so many sweeps at
        most (`SWEEPS`); where f is nearly nothing, or falls fast, for `SWEEPS`.

        On the pair's device; all that is kept comes home at the end.
        """
        with computing_on(self.pair.device, "the residual stream"):
            self._go(self.pair.device)
            report = self._descended(SWEEPS if sweeps is None else sweeps)
        self._go(CPU)
        return StreamSolution(self.alignment(), report)

    def _go(self, device: str) -> None:
        """Take all that is held to a device; what is read from now on goes there as well."""
        if device == self.units.device:
            return
        self.units.go(device)
        self.turn = self.turn.to(device)
        self.inner = {unit: on(device, elements) for unit, elements in self.inner.items()}
        self.votes = on(device, self.votes)

    def _state(self) -> tuple[Alignment, dict[str, dict[str, Tensor]], dict[str, Tensor]]:
        """Where the source is; elements are never changed in place."""
        return self.turn, dict(self.inner), dict(self.votes)

    def _descended(self, sweeps: int) -> Json:
        """The descent of `solve`; the report."""
        starts = {}
        for kind, turn in self.starts().items():
            self.turn, self.inner = turn, {}
            value, after, steps = self.sweep(f"residual stream, start {kind}: ")
            starts[kind] = (after, value, steps, self._state())
        kind = min(starts, key=lambda k: starts[k][0])
        after, value, steps, (self.turn, self.inner, self.votes) = starts[kind]
        rounding = ROUNDING_IN_FLOAT64 if self.pair.dtype.itemsize > 4 else ROUNDING_IN_FLOAT32
        began = max(start[1] for start in starts.values())
        objective, nothing = [value, after], rounding * began
        number, near, falls = 0, False, False
        while number < (max(sweeps, SWEEPS) if near or falls else sweeps):
            number += 1
            last = 2 if near else 1  # what was measured, where what is expected shows nothing
            settled = number > 1 and objective[-last - 2] - objective[-last] <= SETTLED * objective[-last]
            if not steps or settled or objective[-2] <= nothing:
                break
            kept = self._state()
            self._step(Alignment(self.frame, steps))
            near = objective[-1] <= NEAR * began
            label = f"residual stream, sweep {number}, objective {objective[-1]:.5g}: "
            value, after, steps = self.sweep(label, near=near)
            if value > objective[-2]:  # rounding, once nothing is left to gain
                self.turn, self.inner, self.votes = kept
                break
            # what was expected of the step is a difference of sums, rounded as these are: what is measured counts
            objective[-1] = max(objective[-1], value)
            objective += [value, after]
            falls = value <= FALLS * objective[-4]
        return {
            "start": kind,
            "objective": objective,
            "sweeps": len(objective) // 2,
            "groups": self.frame.stream_groups,
        }

    def _step(self, step: Alignment) -> None:
        """Turn the source's streams further, with the elements inside units."""
        self.turn = step @ self.turn
        inner = {unit: Alignment(self.local, elements) for unit, elements in self.inner.items()}
        self.inner = {unit: behind(step, g).elements for unit, g in inner.items()}

    def alignment(self, learned: Mapping[str, Tensor] | None = None) -> Alignment:
        """The element of the whole model: fold, turn, match, and take on the anchor's gains.

        ``learned`` are elements that act after the solver's own, in the same frame.
        """
        units = [
            (unit, self._inner(self.inner[unit.key]), self.units.gauges(unit))
            for unit in self.pair.plan.units
            if unit.key in self.inner
        ]
        return whole_alignment(self.frame, self.local, units, self.turn, self.units.folds, learned)


def shared_starts(
    canonical: CanonicalUnits, units: Sequence[Unit], blocks: Sequence[Block]
) -> dict[str, Alignment]:
    """The turns of the source's streams with which the search starts: ``shared``, and where embeddings and heads
    tell few directions of some stream, ``grams``, which takes the rest of that stream from the lengths in all
    tensors.

    Args:
        canonical: the units of the anchor and of the source, in their canonical gauges.
        units: all units of the plan.
        blocks: of the anchor.
    """
    return _Start(canonical, units).alignments(blocks)


@dataclass
class _Start:
    """A start as it is made: the elements of the streams that are known so far."""

    canonical: CanonicalUnits
    units: Sequence[Unit]
    elements: dict[str, Tensor] = field(default_factory=dict)
    uncertain: dict[str, Tensor] = field(default_factory=dict)
    """Of streams of which what has a shared meaning tells few directions: taken where no neighbour tells more."""

    def alignments(self, blocks: Sequence[Block]) -> dict[str, Alignment]:
        """See `shared_starts`."""
        frame, units = self.canonical.frame, self.units
        if self.canonical.activations is None:
            units = [unit for unit in units if not all(block.scope for block in unit.blocks)]
        crosses = stream_crosses(frame, self._leaves(units, shared=True))
        # a norm's bias helps to find a basis, and is none alone
        bare = streams_alone(frame, blocks) if self.canonical.activations is None else set()
        solved = {name: frame.spaces[name].group.solve(c)[0] for name, c in crosses.items() if name not in bare}
        turning = {name for name in solved if frame.spaces[name].group.compact in ("O", "OFixingOnes")}
        few = {name: solved.pop(name) for name in sorted(turning) if unknown_directions(crosses[name]) > 1}
        known, uncertain = (solved, few) if solved else (few, {})
        alone = [name for name in frame.streams if name not in solved and name not in few]
        by_norms = streams_by_norms(frame, self._leaves(self.units), alone) if alone else {}
        starts = {"shared": self._completed(known | by_norms, uncertain)}
        return starts | {"grams": self._completed(solved | by_norms, {})} if few else starts

    def _completed(self, known: dict[str, Tensor], uncertain: dict[str, Tensor]) -> Alignment:
        """The elements of all streams, from those of some."""
        self.elements, self.uncertain = known, uncertain
        while further := self._next_between():
            self.elements = self.elements | further
        return Alignment(self.canonical.frame, self.elements)

    def _next_between(self) -> dict[str, Tensor]:
        """The elements of one more stream, or of all that are left, from the streams on the other sides of their
        linear maps, whose elements are known; none where nothing tells.

        The one comes first of which most directions are known: a map that narrows says little about where it
        begins. What is not known so, the lengths in all tensors of a stream tell.
        """

        frame = self.canonical.frame
        alone = set(frame.streams) - self.elements.keys()
        if not alone:
            return {}
        units = [unit for unit in self.units if any(alone & block.names for block in unit.blocks)]
        crosses = streams_beside(frame, self._turned_leaves(units), self.elements)
        unknown = {name: unknown_directions(c) for name, c in sorted(crosses.items())}
        first = min(unknown, key=unknown.__getitem__, default=None)
        if (
            first is not None and unknown[first] <= 1
        ):  # rotations that keep the vector of ones have it from elsewhere
            return {first: frame.spaces[first].group.solve(crosses[first])[0]}
        if uncertain := {name: g for name, g in self.uncertain.items() if name in alone}:
            return uncertain
        names = sorted(alone) if first is None else [first]
        return streams_by_grams(frame, lambda: self._turned_leaves(units), names, crosses)

    def _turned_leaves(self, units: Iterable[Unit]) -> Iterator[WeightedLeaf]:
        """Those of units, the source's streams turned as far as they are known."""
        turn = Alignment(self.canonical.frame, self.elements)
        turned = (UnitPair(*self.canonical.canonical(unit)).moved(turn) for unit in units)
        return chain.from_iterable(self.canonical.leaves(pair.anchor, pair.source) for pair in turned)

    def _leaves(self, units: Iterable[Unit], *, shared: bool = False) -> Iterator[WeightedLeaf]:
        """Those of units of both models as they are."""
        read = self.canonical
        return chain.from_iterable(read.leaves(*read.canonical(unit), shared=shared) for unit in units)


@dataclass(frozen=True)
class UnitPair:
    """One unit of both models."""

    anchor: Tensors
    source: Tensors

    def moved(self, g: Alignment) -> UnitPair:
        """The unit with its source moved by an element; what is not moved is shared with this one."""
        return UnitPair(self.anchor, moved(g, self.source))

    def without_taps(self) -> UnitPair:
        """The weights of the unit alone."""
        return UnitPair({**weights_of(self.anchor)}, {**weights_of(self.source)})
