"""The canonical representative of a model's orbit: the same function, and the same weights whatever disguise it wore.

A dressing field in the sense of Francois and Ravera (2026): an element u of the symmetry group that depends on the weights
with ``u(g theta) = u(theta) g^-1``, so that ``u(theta) theta`` is the same on the whole orbit. Here ``u`` is built in this
order, each step by what the steps before have fixed and the later ones leave alone: fold the norms' gains, move biases that
are free, balance every pair of maps, turn the residual streams to the eigenbasis of what reads and writes them, then
eigenbases, signs and phases inside the layers, and orders. Everything comes from the spec; passes hold one unit at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isomerge.engine.canonical_frame import folding, read_moved, whole_alignment
from isomerge.engine.commands import run_apply
from isomerge.engine.models import Model
from isomerge.engine.plan import make_plan
from isomerge.engine.run import Output
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.frame import has_shared_meaning, lonely_gains
from isomerge.matching.local import squared_norm
from isomerge.quotient.representative import (
    ROTATED,
    SIGNED,
    SORTED,
    Gap,
    along,
    basis,
    coordinates,
    element,
    second_moment,
    third_moment,
)
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.spec import Space, Spec
from isomerge.symmetry.units import Unit, elements_of

if TYPE_CHECKING:
    from torch import Tensor

Told = Callable[[str, int, int], None]
CLOSE = 1e-6
"""A gap below this is told of: float32 weights carry about a tenth of it as rounding."""


@dataclass
class Canonical:
    """What was found: the element that moves the model to its representative, and how sure every choice was."""

    alignment: Alignment
    gaps: list[Gap]
    dead: list[str]
    """Elements of blocks that have no balanced point (dead or rank-deficient)."""
    norm: float
    """The Frobenius norm of the representative."""
    notes: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """The degeneracy report, in JSON: per space and kind the smallest gap, and by how much the other choice moves the
        weights, as a share of their norm; ``ambiguous`` are the choices that rounding may make."""
        worst: dict[tuple[str, str], Gap] = {}
        for gap in sorted(self.gaps, key=lambda gap: gap.value):
            worst.setdefault((gap.element.partition("[")[0], gap.kind), gap)
        shown = [self._shown(gap) for gap in worst.values()]
        close = [self._shown(gap) for gap in sorted(self.gaps, key=lambda g: g.value) if gap.value < CLOSE]
        return {"gaps": shown, "ambiguous": close, "dead": sorted(self.dead), "unique": not close and not self.dead}

    def _shown(self, gap: Gap) -> dict[str, Any]:
        moves = (max(gap.weight, 0.0) ** 0.5) / max(self.norm, 1e-300)
        return {"element": gap.element, "kind": gap.kind, "gap": gap.value, "moves": moves}


class Moments:
    """Sums of second or third moments by element key."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}

    def add(self, key: str, value: Tensor) -> None:
        """One leaf's share."""
        self.found[key] = self.found[key] + value if key in self.found else value


class Canonicaliser:
    """Finds the representative of one model in three passes over its units."""

    def __init__(self, model: Model, observer: Told = lambda what, done, total: None) -> None:
        import torch

        self.model, self.observer = model, observer
        self.dtype = torch.float64  # gaps of a millionth are decided
        self.plan = make_plan(model, [], "all")
        self.local = self.plan.selection.spec
        self.frame = self.plan.selection.frame or self.local
        self.blocks = [block for unit in self.plan.units for block in unit.blocks]
        notes = list(self.plan.selection.notes)
        if self.plan.selection.frame is not None and lonely_gains(self.frame, self.blocks):
            self.frame = self.local
            notes.append("a norm gives out its stream, which must keep its basis")
        self.notes = tuple(notes)
        self.fold = folding(model, self.frame, self.blocks, self.dtype)
        self.gauges: dict[str, Alignment] = {}
        self.turn = Alignment(self.frame)
        self.gaps: list[Gap] = []
        self.dead: list[str] = []
        self.norm = 0.0
        self._passes = 0

    def solve(self) -> Canonical:
        """The representative's element."""
        second = self._second_moments()
        streams = {n: self.frame.spaces[n] for n in self.frame.streams}
        third, size = self._third_moments(streams, second, shared=True)
        self.turn = Alignment(self.frame, self._elements(streams, second, third, size))
        third, size = self._third_moments(self.local.spaces, second, shared=False)
        found = self._elements(self.local.spaces, second, third, size)
        units = [
            (
                unit,
                Alignment(self.local, {k: found[k] for k in (*unit.elements, *unit.votes) if k in found}),
                (Alignment(self.local), self.gauges[unit.key]),
            )
            for unit in self.plan.units
        ]
        moved = whole_alignment(self.frame, self.local, units, self.turn, (Alignment(self.frame), self.fold))
        return Canonical(moved, self.gaps, self.dead, self.norm**0.5, self.notes)

    # ------------------------------------------------------------------ passes

    def _units(self, what: str, units: Sequence[Unit]) -> Iterator[tuple[Unit, dict[Block, Tensor]]]:
        """Units with gains folded and streams turned, balanced."""
        for number, unit in enumerate(units):
            self.observer(what, number, len(units))
            moved = self.turn @ self.fold
            tensors = {block: read_moved(self.model, block, self.dtype, moved) for block in unit.blocks}
            floats = {block: t for block, t in tensors.items() if t.is_floating_point()}
            if unit.key in self.gauges:
                self.gauges[unit.key].act(floats)
            else:
                self.gauges[unit.key], dead = canonical_gauge(self.local, floats)
                self.dead += dead
            yield unit, floats

    def _spaces(self, blocks: Sequence[Block], spec: Spec, spaces: dict[str, Space]) -> dict[str, Space]:
        """The element keys that act on blocks."""
        found = {key: space for block in blocks for key, space in elements_of(spec, block).items()}
        return {key: space for key, space in found.items() if space.name in spaces}

    def _second_moments(self) -> dict[str, Tensor]:
        """Of every element, local ones and streams."""
        sums = Moments()
        for unit, tensors in self._units("bases and orders", self.plan.units):
            self.norm += sum(squared_norm(t) for t in tensors.values())
            streams = {n: self.frame.spaces[n] for n in self.frame.streams}
            for spec, spaces in ((self.local, self.local.spaces), (self.frame, streams)):
                for key, space in self._spaces(unit.blocks, spec, spaces).items():
                    for block, tensor in tensors.items():
                        if key not in elements_of(spec, block):
                            continue
                        for x, _ in along(spec, space, {block: tensor}):
                            sums.add(key, second_moment(space, x))
        return sums.found

    def _third_moments(
        self, spaces: dict[str, Space], second: dict[str, Tensor], *, shared: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Of these spaces, in their eigenbases; ``shared``: from blocks that nothing inside layers acts on."""
        moments, sizes = Moments(), Moments()
        spec = self.frame if shared else self.local
        wanted = {n: s for n, s in spaces.items() if s.group.compact in (*SIGNED, "Complex")}
        turns: dict[str, Tensor] = {}
        units = self.plan.units
        if shared:
            units = [u for u in units if any(has_shared_meaning(self.frame, b) for b in u.blocks)]
        for unit, tensors in self._units("signs and phases", units if wanted else ()):
            for key, space in self._spaces(unit.blocks, spec, wanted).items():
                if space.group.compact in ROTATED and key not in turns:
                    turns[key] = basis(space, second[key])[0]
                for block, tensor in tensors.items():
                    if key not in elements_of(spec, block) or (
                        shared and not has_shared_meaning(self.frame, block)
                    ):
                        continue
                    for x, _ in along(spec, space, {block: tensor}):
                        third, size = third_moment(space, coordinates(space, turns.get(key), x))
                        moments.add(key, third)
                        sizes.add(key, size)
        return moments.found, sizes.found

    def _elements(
        self, spaces: dict[str, Space], second: dict[str, Tensor], third: dict[str, Tensor], size: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The element of every key of these spaces."""
        found: dict[str, Tensor] = {}
        for key, moment in second.items():
            space = spaces.get(key.partition("[")[0])
            if space is None or space.group.compact not in (*SIGNED, *SORTED, "Complex"):
                continue
            found[key], gaps = element(key, space, moment, third.get(key), size.get(key))
            self.gaps += gaps
        return found


CARD = (
    "Canonical form",
    "The same function as the model below, in the one set of weights that stands for all of its disguises: norms' gains "
    "folded, maps balanced, axes in their eigenbases, signs and orders fixed. Made by isomerge.",
)


def canonical(model: Model, observer: Told = lambda what, done, total: None) -> Canonical:
    """The element that moves a model to the representative of its orbit, with the degeneracy report.

    Raises:
        IsomergeError: a gain of zero, which cannot be folded.
    """
    return Canonicaliser(model, observer).solve()


def run_canon(model: Model, output: Output) -> tuple[Alignment, dict[str, Any]]:
    """Write a model's representative; returns what moved it there, and the report."""
    found = canonical(model, output.observer)
    more = {"degeneracy": found.report(), "notes": list(found.notes)}
    report = run_apply(
        found.alignment, model, output, name="to the canonical form", command="canon", card=CARD, more=more
    )
    return found.alignment, report
