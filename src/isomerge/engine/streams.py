"""Matching the residual stream: passes over two models that never hold more than one unit of each.

Gains are folded and every unit is moved to its canonical gauge, where all that is left to find keeps lengths. There

    f(R, g) = sum over tensors of w |A - R g B|^2

is lowered by block coordinate descent: each pass solves the block-local elements g of every unit with R as it is, and
gathers one cross-Gram [d, d] per stream on the way, whose solution is the best R for these g. f never rises. R starts
from what has a shared meaning: embeddings of tokens, positions and patches, and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from isomerge.engine.accelerator import CPU, at_home, computing_on, on
from isomerge.engine.canonical_frame import folding, read_moved, rooted, whole_alignment
from isomerge.engine.plan import unit_bytes
from isomerge.matching.frame import (
    WeightedLeaf,
    has_shared_meaning,
    stream_crosses,
    weighted_leaves,
)
from isomerge.matching.local import compact_solution, squared_distance, squared_norm, vote
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.engine.models import Model
    from isomerge.engine.pair import PairSolver
    from isomerge.engine.taps import Activations, Tap

Blocks = dict[Block, "Tensor"]
Told = Callable[[str, int, int], None]
# A sweep that lowers the objective by less than this fraction is the last: far below any effect on the merged model.
SETTLED = 1e-5
SWEEPS = 40
# Of the objective as it began: what float32 leaves of a twin (squares of 1e-7, a hundred times over).
ROUNDING = 1e-12
# Canonical units of both models are kept between sweeps while they fit into this many bytes, else read again.
CACHE = 2_000_000_000
# How much weights and activations count. Weights decide where activations leave a choice.
SHARES = {"weights": (1.0, 0.0), "activations": (1e-3, 1.0), "both": (1.0, 1.0)}


@dataclass
class Canonical:
    """One unit of both models with gains folded, in the canonical gauges; not to be changed."""

    anchor: Blocks
    source: Blocks
    taps: list[tuple[Tap, Tensor, Tensor, float]]
    """Activations of the anchor and of the source, and how much they count."""


@dataclass
class StreamSolution:
    """What was found: the element of the whole model, and a report, with the objective after every half step."""

    alignment: Alignment
    report: dict[str, Any] = field(default_factory=dict)


class StreamSolver:
    """Finds the residual stream's elements together with the block-local ones.

    Args:
        pair: the two models and the plan over their shared blocks; ``plan.selection.frame`` must be set.
        observer: told of progress, and of the objective as it falls.
        activations: centred ones of the anchor and of the source, each in its own coordinates.
        evidence: with activations, what counts: ``activations`` or ``both``.
    """

    def __init__(
        self,
        pair: PairSolver,
        observer: Told,
        activations: tuple[Activations, Activations] | None = None,
        evidence: str = "both",
    ) -> None:
        frame = pair.plan.selection.frame or pair.plan.selection.spec
        self.pair, self.observer = pair, observer
        self.frame, self.local = frame, pair.plan.selection.spec
        self.blocks = [block for unit in pair.plan.units for block in unit.blocks]
        self.folds: dict[Model, Alignment] = {}
        for model in (pair.anchor, pair.source):
            self.folds[model] = folding(model, frame, self.blocks, pair.dtype)
        self.weights: dict[str, float] = {}
        self.turn = Alignment(frame)
        self.inner: dict[str, dict[str, Tensor]] = {}
        self.gauges: dict[str, tuple[Alignment, Alignment]] = {}
        self._cache: dict[str, Canonical] = {}
        self.activations = activations
        self.share = SHARES[evidence] if activations else SHARES["weights"]
        self._room = CACHE
        self._device = CPU

    def folded(self, model: Model, block: Block) -> Tensor:
        """A block with gains folded."""
        with at_home(self._device):
            return read_moved(model, block, self.pair.dtype, self.folds[model])

    def weight(self, block: Block) -> float:
        """How much a block counts: by the inverse of the anchor's norm, so that no embedding outvotes a layer."""
        return self.weights.get(block.key, 0.0)

    def canonical(self, unit: Unit) -> Canonical:
        """Both models' blocks of a unit in their canonical gauges, gains folded; not to be changed."""
        if unit.key in self._cache:
            return self._cache[unit.key]
        pair = self.pair
        a, b = (
            on(self._device, {block: self.folded(m, block) for block in unit.blocks})
            for m in (pair.anchor, pair.source)
        )
        to_a = to_b = Alignment(self.local)
        if self.pair.plan.is_matched(unit):
            to_a, _ = pair.to_gauge(self.local, a)
            to_b, _ = pair.to_gauge(self.local, b)
            self.gauges[unit.key] = (to_a, to_b)
        counts: dict[str, float] = {}
        for block, tensor in a.items():
            norm = squared_norm(tensor) ** 0.5
            counts[block.key] = norm
            self.weights[block.key] = self.share[0] / norm if norm > 0 and tensor.is_floating_point() else 0.0
        found = Canonical(a, b, list(self._taps(unit, counts, to_a, to_b)))
        size = sum(t.nbytes for t in (*a.values(), *b.values()))
        if size <= self._room:
            self._room -= size
            self._cache[unit.key] = found
        return found

    def _taps(
        self, unit: Unit, counts: dict[str, float], to_a: Alignment, to_b: Alignment
    ) -> Iterator[tuple[Tap, Tensor, Tensor, float]]:
        """The unit's activations in the frame of its blocks; each counts as much as its weight does."""
        if self.activations is None:
            return
        here = {block.key for block in unit.blocks}
        with at_home(self._device):
            gauges = (to_a.to(CPU) @ self.folds[self.pair.anchor], to_b.to(CPU) @ self.folds[self.pair.source])
            a, b = (given.only(here).moved(g) for given, g in zip(self.activations, gauges, strict=True))
        for key, x in a.values.items():
            norm, tap = squared_norm(x), a.taps[key]
            if key in b.values and norm > 0:
                yield (
                    tap,
                    x.to(self._device),
                    b.values[key].to(self._device),
                    self.share[1] * counts[tap.block] / norm,
                )

    # ------------------------------------------------------------------ descent

    def begin(self, kind: str) -> None:
        """Start from the embeddings and heads (``shared``) or from the streams as they are (``identity``).

        With activations, ``shared`` starts from the norms' outputs as well.
        """
        self.inner, self.turn = {}, Alignment(self.frame)
        if kind != "shared":
            return
        pairs: list[WeightedLeaf] = []
        for unit in self.pair.plan.units:
            if self.activations is None and all(block.scope for block in unit.blocks):
                continue
            found = self.canonical(unit)
            shared = [
                (b, found.anchor[b], found.source[b]) for b in unit.blocks if has_shared_meaning(self.frame, b)
            ]
            pairs += weighted_leaves(self.frame, shared, self.weight)
            pairs += self.tap_leaves(self.frame, found.taps)
        crosses = stream_crosses(self.frame, pairs)
        solved = {name: self.frame.spaces[name].group.solve(c)[0] for name, c in crosses.items()}
        self.turn = Alignment(self.frame, solved)

    def tap_leaves(self, spec: Spec, taps: Sequence[tuple[Tap, Tensor, Tensor, float]]) -> Iterator[WeightedLeaf]:
        """The atom views of activations, with what they count."""
        for tap, x, y, weight in taps:
            for (u, v), here in tap.leaves(spec, x, y):
                yield u, v, here, weight

    def sweep(self, label: str = "") -> tuple[float, float, dict[str, Tensor]]:
        """One pass: block-local elements of every unit; returns f before and after the streams would follow, and how."""
        units = self.pair.plan.units
        total = sum(unit_bytes(self.pair.anchor, unit) for unit in units)
        if self.pair.plan.votes:
            self._vote()
        seen, value = 0, 0.0
        crosses: dict[str, Tensor] = {}
        for unit in units:
            self.observer(f"{label}{unit.key}", seen, total)
            seen += unit_bytes(self.pair.anchor, unit)
            moved = self.matched_unit(unit)
            value += self._distance(moved)
            pairs = ((block, moved.anchor[block], moved.source[block]) for block in unit.blocks)
            leaves = chain(weighted_leaves(self.frame, pairs, self.weight), self.tap_leaves(self.frame, moved.taps))
            for stream, cross in stream_crosses(self.frame, leaves).items():
                crosses[stream] = crosses[stream] + cross if stream in crosses else cross
        gain = 0.0
        steps: dict[str, Tensor] = {}
        for stream, cross in crosses.items():
            group = self.frame.spaces[stream].group
            step, score = group.solve(cross)
            stay = group.contract(group.identity((), cross.shape[-1]), cross)
            if float(score - stay) > 0:
                gain += 2 * float(score - stay)
                steps[stream] = step
        return value, max(value - gain, 0.0), steps  # less than nothing is left only by rounding

    def matched_unit(self, unit: Unit) -> Canonical:
        """The unit with the source turned and matched inside (by the better of the new elements and the old)."""
        turned = self.act(self.turn, self.canonical(unit))
        if not self.pair.plan.is_matched(unit):
            return turned
        votes = {name: self.pair.votes[name] for name in unit.votes}
        a, b = (rooted(x, self.weight) for x in (turned.anchor, turned.source))
        more = [(u * w**0.5, v * w**0.5, here) for u, v, here, w in self.tap_leaves(self.local, turned.taps)]
        found = compact_solution(self.local, a, b, votes, more).elements
        best, distance = turned, float("inf")
        for elements in (found, self.inner.get(unit.key)):
            if elements is None:
                continue
            trial = self.act(self._inner(elements), turned)
            there = self._distance(trial)
            if there < distance:
                best, distance, self.inner[unit.key] = trial, there, elements
        return best

    def placed_unit(self, unit: Unit) -> Canonical:
        """The unit with the source turned and matched inside as it stands now; nothing is solved."""
        turned = self.act(self.turn, self.canonical(unit))
        elements = self.inner.get(unit.key)
        if elements is None:
            return turned
        return self.act(self._inner(elements), turned)

    def act(self, g: Alignment, unit: Canonical) -> Canonical:
        """The unit with its source moved."""
        blocks = {block: t.clone() for block, t in unit.source.items()}
        g.act({block: t for block, t in blocks.items() if t.is_floating_point()})
        taps = []
        for tap, x, y, weight in unit.taps:
            y = y.clone()
            for (view,), here in tap.leaves(g.spec, y):
                g.act_on_view(view, here, dict(tap.scope))
            taps.append((tap, x, y, weight))
        return Canonical(unit.anchor, blocks, taps)

    def _distance(self, unit: Canonical) -> float:
        """The unit's part of f."""
        parts = ((unit.anchor[b], unit.source[b], self.weight(b)) for b in unit.anchor)
        taps = ((x, y, w) for _, x, y, w in unit.taps)
        return sum(w * squared_distance(x, y) for x, y, w in chain(parts, taps) if w)

    def _inner(self, elements: Mapping[str, Tensor]) -> Alignment:
        """A unit's elements; stack-wide ones replace what an older solution had of them."""
        votes = self.pair.votes
        return Alignment(self.local, {**elements, **{name: votes[name] for name in elements if name in votes}})

    def _vote(self) -> None:
        """Decide the stack-wide spaces with the streams as they are."""
        profits: dict[str, Tensor] = {}
        for unit in self.pair.plan.units:
            if not unit.votes:
                continue
            turned = self.act(self.turn, self.canonical(unit))
            a, b = (rooted(x, self.weight) for x in (turned.anchor, turned.source))
            for name in unit.votes:
                profit = vote(self.local, a, b, name)
                profits[name] = profits[name] + profit if name in profits else profit
        self.pair.votes = {n: self.local.spaces[n].group.solve(p)[0] for n, p in profits.items()}

    def solve(self, sweeps: int = SWEEPS) -> StreamSolution:
        """Descend from both starts for one sweep, then from the lower one until f settles, for so many sweeps at most.

        On the pair's device; all that is kept comes home at the end.
        """
        with computing_on(self.pair.device, "the residual stream"):
            self._go(self.pair.device)
            report = self._descended(sweeps)
        self._go(CPU)
        return StreamSolution(self.alignment(), report)

    def _go(self, device: str) -> None:
        """Take all that is held to a device; what is read from now on goes there as well."""
        if device == self._device:
            return
        self._device = device
        self.turn = self.turn.to(device)
        self.inner = {unit: on(device, elements) for unit, elements in self.inner.items()}
        self.gauges = {unit: (a.to(device), b.to(device)) for unit, (a, b) in self.gauges.items()}
        self.pair.votes = on(device, self.pair.votes)
        for key, unit in self._cache.items():
            taps = [(tap, x.to(device), y.to(device), weight) for tap, x, y, weight in unit.taps]
            self._cache[key] = Canonical(on(device, unit.anchor), on(device, unit.source), taps)

    def _descended(self, sweeps: int) -> dict[str, Any]:
        """The descent of `solve`; the report."""
        starts = {}
        for kind in ("shared", "identity"):
            self.begin(kind)
            value, after, steps = self.sweep(f"residual stream, start {kind}: ")
            starts[kind] = (after, value, steps, self.turn, dict(self.inner), dict(self.pair.votes))
        kind = min(starts, key=lambda k: starts[k][0])
        after, value, steps, self.turn, self.inner, self.pair.votes = starts[kind]
        objective, nothing = [value, after], ROUNDING * max(start[1] for start in starts.values())
        for number in range(1, sweeps + 1):
            settled = number > 1 and objective[-3] - objective[-1] <= SETTLED * objective[-1]
            if not steps or settled or objective[-2] <= nothing:
                break
            kept = (self.turn, dict(self.inner), dict(self.pair.votes))
            self.turn = Alignment(self.frame, steps) @ self.turn
            value, after, steps = self.sweep(f"residual stream, sweep {number}, objective {objective[-1]:.5g}: ")
            if value > objective[-2]:  # rounding, once nothing is left to gain
                self.turn, self.inner, self.pair.votes = kept[0], kept[1], kept[2]
                break
            # what was expected of the step is a difference of sums, rounded as these are: what is measured counts
            objective[-1] = max(objective[-1], value)
            objective += [value, after]
        return {
            "start": kind,
            "objective": objective,
            "sweeps": len(objective) // 2,
            "groups": self.frame.stream_groups,
        }

    def alignment(self, learned: Mapping[str, Tensor] | None = None) -> Alignment:
        """The element of the whole model: fold, turn, match, and take on the anchor's gains.

        ``learned`` are elements that act after those that were found here, in the same frame.
        """
        units = []
        for unit in self.pair.plan.units:
            if unit.key in self.inner:
                if unit.key not in self.gauges:
                    self.canonical(unit)
                units.append((unit, self._inner(self.inner[unit.key]), self.gauges[unit.key]))
        folds = (self.folds[self.pair.anchor], self.folds[self.pair.source])
        return whole_alignment(self.frame, self.local, units, self.turn, folds, learned)
