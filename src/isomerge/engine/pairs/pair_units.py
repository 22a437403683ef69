"""The units of two models in their canonical gauges: read one unit of both at a time, kept while they fit.

Gains are folded into what reads them, so all that is left to find between the two keeps lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from isomerge.engine.accelerator import CPU, at_home, on
from isomerge.engine.models import Model
from isomerge.engine.pairs.canonical_frame import folding, read_moved
from isomerge.matching.frame import WeightedLeaf, has_shared_meaning, weighted_leaves
from isomerge.matching.local import squared_distance, squared_norm
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.engine.pairs.pair import PairSolver
    from isomerge.engine.stats.taps import Activations, Tap

WeightedTap = tuple["Tap", "Tensor", "Tensor", float]
"""Activations of the anchor and of the source at a tap, and how much they count."""


@dataclass
class Canonical:
    """One unit of both models; not to be changed."""

    anchor: Blocks
    source: Blocks
    taps: list[WeightedTap]

    def moved(self, g: Alignment) -> Canonical:
        """The unit with its source moved by an element; what is not moved is shared with this one."""
        floats = g.applied({block: t for block, t in self.source.items() if t.is_floating_point()})
        taps = []
        for tap, x, y, weight in self.taps:
            y = y.clone()
            for (view,), here in tap.leaves(g.spec, y):
                g.act_on_view(view, here, dict(tap.scope))
            taps.append((tap, x, y, weight))
        return Canonical(self.anchor, {block: floats.get(block, t) for block, t in self.source.items()}, taps)


def tap_leaves(spec: Spec, taps: Sequence[WeightedTap]) -> Iterator[WeightedLeaf]:
    """The atom views of activations, with what they count."""
    for tap, x, y, weight in taps:
        for (u, v), here in tap.leaves(spec, x, y):
            yield u, v, here, weight


class PairUnits:
    """Reads the units of an anchor and a source, gains folded, in their canonical gauges.

    Args:
        pair: the two models and the plan over their shared blocks.
        share: how much weights and activations count.
        activations: centred ones of the anchor and of the source, each in its own coordinates.
        room: units are kept while they fit into so many bytes, else read again.
    """

    def __init__(
        self,
        pair: PairSolver,
        share: tuple[float, float],
        activations: tuple[Activations, Activations] | None = None,
        *,
        room: int,
    ) -> None:
        self.pair, self.share, self.activations = pair, share, activations
        self.local = pair.plan.selection.spec
        self.frame = pair.plan.selection.frame or self.local
        blocks = [block for unit in pair.plan.units for block in unit.blocks]
        self.folds: dict[Model, Alignment] = {
            model: folding(model, self.frame, blocks, pair.dtype) for model in (pair.anchor, pair.source)
        }
        self.device = CPU
        """Where units are given; `go` changes it."""
        self._gauges: dict[str, tuple[Alignment, Alignment]] = {}
        self._weights: dict[str, float] = {}
        self._cache: dict[str, Canonical] = {}
        self._room = room

    def go(self, device: str) -> None:
        """Take all that is kept to a device; what is read from now on goes there as well."""
        self.device = device
        self._gauges = {unit: (a.to(device), b.to(device)) for unit, (a, b) in self._gauges.items()}
        for key, unit in self._cache.items():
            taps = [(tap, x.to(device), y.to(device), weight) for tap, x, y, weight in unit.taps]
            self._cache[key] = Canonical(on(device, unit.anchor), on(device, unit.source), taps)

    def folded(self, model: Model, block: Block) -> Tensor:
        """A block with gains folded."""
        with at_home(self.device):
            return read_moved(model, block, self.pair.dtype, self.folds[model])

    def canonical(self, unit: Unit) -> Canonical:
        """Both models' blocks of a unit, and the activations that belong to it."""
        if unit.key in self._cache:
            return self._cache[unit.key]
        pair = self.pair
        a, b = (
            on(self.device, {block: self.folded(m, block) for block in unit.blocks})
            for m in (pair.anchor, pair.source)
        )
        to_a = to_b = Alignment(self.local)
        if pair.plan.is_matched(unit):
            to_a, _ = pair.to_gauge(self.local, a)
            to_b, _ = pair.to_gauge(self.local, b)
            self._gauges[unit.key] = (to_a, to_b)
        norms = {block.key: squared_norm(tensor) ** 0.5 for block, tensor in a.items()}
        for block, tensor in a.items():
            counts = norms[block.key] > 0 and tensor.is_floating_point()
            self._weights[block.key] = self.share[0] / norms[block.key] if counts else 0.0
        found = Canonical(a, b, list(self._taps(norms, to_a, to_b)))
        size = sum(t.nbytes for t in (*a.values(), *b.values()))
        if size <= self._room:
            self._room -= size
            self._cache[unit.key] = found
        return found

    def _taps(self, norms: dict[str, float], to_a: Alignment, to_b: Alignment) -> Iterator[WeightedTap]:
        """The activations of a unit in the frame of its blocks; each counts as much as its weight does.

        ``norms`` are those of the anchor's blocks.
        """
        if self.activations is None:
            return
        with at_home(self.device):
            gauges = (to_a.to(CPU) @ self.folds[self.pair.anchor], to_b.to(CPU) @ self.folds[self.pair.source])
            a, b = (given.only({*norms}).moved(g) for given, g in zip(self.activations, gauges, strict=True))
        for key, x in a.values.items():
            square, tap = squared_norm(x), a.taps[key]
            if key in b.values and square > 0:
                weight = self.share[1] * norms[tap.block] / square
                yield tap, x.to(self.device), b.values[key].to(self.device), weight

    def gauges(self, unit: Unit) -> tuple[Alignment, Alignment]:
        """What brings the anchor and the source to their gauges in a matched unit."""
        if unit.key not in self._gauges:
            self.canonical(unit)
        return self._gauges[unit.key]

    # ------------------------------------------------------------------ measures

    def weight(self, block: Block) -> float:
        """How much a block counts: by the inverse of the anchor's norm, so that no embedding outvotes a layer."""
        return self._weights.get(block.key, 0.0)

    def distance(self, unit: Canonical) -> float:
        """The weighted squared distance of a unit of the two models, wherever the source is."""
        parts = ((unit.anchor[b], unit.source[b], self.weight(b)) for b in unit.anchor)
        taps = ((x, y, w) for _, x, y, w in unit.taps)
        return sum(w * squared_distance(x, y) for x, y, w in chain(parts, taps) if w)

    def leaves(self, unit: Canonical, *, shared: bool = False) -> Iterator[WeightedLeaf]:
        """The weighted atom views of a unit in the streams' spec; ``shared``: of weights, those that mean the same in both."""
        blocks = (b for b in unit.anchor if not shared or has_shared_meaning(self.frame, b))
        yield from weighted_leaves(self.frame, ((b, unit.anchor[b], unit.source[b]) for b in blocks), self.weight)
        yield from tap_leaves(self.frame, unit.taps)
