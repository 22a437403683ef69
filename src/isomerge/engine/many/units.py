"""The units of many models in their canonical gauges: read one unit of all models at a time, kept while they fit.

A unit of one model is a mapping from blocks (weights) and taps (activations) to tensors; both have typed axes, so that
an element moves them alike and both have cross-Grams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING

from isomerge.engine.accelerator import CPU, at_home, on
from isomerge.engine.models import Model
from isomerge.engine.pairs import streams
from isomerge.engine.pairs.canonical_frame import folding, read_moved, rooted
from isomerge.engine.plan import Plan
from isomerge.engine.stats.taps import Activations, Tap
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.frame import WeightedLeaf, has_shared_meaning
from isomerge.matching.local import squared_distance, squared_norm
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Key = Block | Tap
Tensors = dict[Key, "Tensor"]


def moved(g: Alignment, tensors: Mapping[Key, Tensor]) -> Tensors:
    """A unit moved by an element; the unit itself is not changed."""
    if not len(g):
        return dict(tensors)
    blocks = {key: t.clone() for key, t in tensors.items() if isinstance(key, Block)}
    g.act(blocks)
    found: Tensors = {**blocks}
    for key, t in tensors.items():
        if isinstance(key, Tap):
            found[key] = t.clone()
            for (view,), here in key.leaves(g.spec, found[key]):
                g.act_on_view(view, here, dict(key.scope))
    return found


def leaves_of(spec: Spec, key: Key, *tensors: Tensor) -> Iterator[tuple[tuple[Tensor, ...], tuple[Atom, ...]]]:
    """The atom views of the tensors of one block or tap, and their atoms."""
    if isinstance(key, Tap):
        yield from key.leaves(spec, *tensors)
    else:
        yield from ((views, atoms) for views, atoms, _ in leaves(spec, key, *tensors))


class ManyUnits:
    """Reads the units of several models, gains folded, in their canonical gauges.

    Args:
        models: compatible models.
        plan: the plan over their shared blocks, made for the first.
        dtype: the working dtype.
        shares: how much every model counts, positive, with sum one.
        activations: centred ones of every model, each in its own coordinates.
        evidence: with activations, what counts: ``activations``, ``both`` or ``weights``.
        device: where units are matched, until `come_home`.
    """

    def __init__(
        self,
        models: Sequence[Model],
        plan: Plan,
        dtype: torch.dtype,
        shares: Sequence[float],
        activations: Sequence[Activations] | None = None,
        evidence: str = "both",
        device: str = CPU,
    ) -> None:
        self.models, self.plan, self.dtype, self.shares = tuple(models), plan, dtype, tuple(shares)
        self.local = plan.selection.spec
        self.frame = plan.selection.frame or self.local
        self.blocks = [block for unit in plan.units for block in unit.blocks]
        with at_home(device):
            self.folds = [folding(model, self.frame, self.blocks, dtype) for model in models]
        self.activations = activations
        self.evidence = streams.SHARES[evidence] if activations else streams.SHARES["weights"]
        self.weights: dict[str, float] = {}
        self.norms: dict[str, list[float]] = {}
        """Squared norms of every block in the canonical gauge, by model: the same all over an orbit."""
        self.gauges: dict[str, list[Alignment]] = {}
        self.dead: set[str] = set()
        self._cache: dict[str, list[Tensors]] = {}
        self._room = streams.CACHE
        self.device = device

    def folded(self, m: int, block: Block) -> Tensor:
        """A block of one model with gains folded."""
        with at_home(self.device):
            return read_moved(self.models[m], block, self.dtype, self.folds[m])

    def canonical(self, unit: Unit) -> list[Tensors]:
        """A unit of every model, floating point only; not to be changed."""
        if unit.key in self._cache:
            return self._cache[unit.key]
        read = [{b: self.folded(m, b) for b in unit.blocks} for m in self._all]
        every = [on(self.device, {b: t for b, t in x.items() if t.is_floating_point()}) for x in read]
        gauges = [Alignment(self.local) for _ in self._all]
        if self.plan.is_matched(unit):
            gauges = []
            for tensors in every:
                to, dead = canonical_gauge(self.local, tensors)
                gauges.append(to)
                self.dead |= {*dead}
            self.gauges[unit.key] = gauges
        self._weigh(every)
        found: list[Tensors] = [{**tensors} for tensors in every]
        self._add_taps(unit, found, gauges)
        size = sum(t.nbytes for tensors in found for t in tensors.values())
        if size <= self._room:
            self._room -= size
            self._cache[unit.key] = found
        return found

    def come_home(self) -> None:
        """Take all that is kept into main memory; what is read from now on stays there."""
        if self.device == CPU:
            return
        self.device = CPU
        self.gauges = {unit: [gauge.to(CPU) for gauge in gauges] for unit, gauges in self.gauges.items()}
        self._cache = {unit: [on(CPU, tensors) for tensors in every] for unit, every in self._cache.items()}

    @property
    def _all(self) -> range:
        return range(len(self.models))

    def _weigh(self, every: Sequence[Mapping[Block, Tensor]]) -> None:
        """How much blocks count: all alike inside layers; with streams or activations, by the inverse of the norm."""
        for block in every[0]:
            if block.key in self.weights:
                continue
            norms = [squared_norm(tensors[block]) for tensors in every]
            mean = fsum(w * norm**0.5 for w, norm in zip(self.shares, norms, strict=True))
            self.norms[block.key] = norms
            even = self.plan.selection.frame is None and self.activations is None
            self.weights[block.key] = 1.0 if even else self.evidence[0] / mean if mean > 0 else 0.0

    def _add_taps(self, unit: Unit, found: list[Tensors], gauges: Sequence[Alignment]) -> None:
        """The activations that belong to a unit; each counts as much as its weight does."""
        if self.activations is None:
            return
        here = {block.key: self.norms[block.key] for block in unit.blocks if block.key in self.norms}
        with at_home(self.device):
            every = [
                given.only(set(here)).moved(gauge.to(CPU) @ fold)
                for given, gauge, fold in zip(self.activations, gauges, self.folds, strict=True)
            ]
        for key, tap in every[0].taps.items():
            values = [a.values[key] for a in every if key in a.values]
            mean = fsum(w * squared_norm(x) for w, x in zip(self.shares, values, strict=False))
            if len(values) < len(every) or mean == 0:
                continue
            size = fsum(w * norm**0.5 for w, norm in zip(self.shares, here[tap.block], strict=True))
            self.weights[tap.key] = self.evidence[1] * size / mean
            for tensors, x in zip(found, values, strict=True):
                tensors[tap] = x.to(self.device)

    # ------------------------------------------------------------------ measures

    def weight(self, key: Key) -> float:
        """How much the squared distances of a block or tap count."""
        return self.weights.get(key.key, 0.0)

    def distance(self, x: Mapping[Key, Tensor], y: Mapping[Key, Tensor]) -> float:
        """The weighted squared distance of one unit of two models."""
        return sum(w * squared_distance(t, y[key]) for key, t in x.items() if (w := self.weight(key)))

    def leaves(
        self, x: Mapping[Key, Tensor], y: Mapping[Key, Tensor], *, shared: bool = False
    ) -> Iterator[WeightedLeaf]:
        """The weighted atom views of one unit of two models; ``shared``: of what means the same in all models."""
        for key, t in x.items():
            weight = self.weight(key)
            if weight and not (shared and isinstance(key, Block) and not has_shared_meaning(self.frame, key)):
                for (u, v), here in leaves_of(self.frame, key, t, y[key]):
                    yield u, v, here, weight

    def rooted(self, tensors: Mapping[Key, Tensor]) -> dict[Block, Tensor]:
        """The blocks of a unit times the roots of their weights, as local solvers take them."""
        return rooted({key: t for key, t in tensors.items() if isinstance(key, Block)}, self.weight)

    def rooted_taps(
        self, x: Mapping[Key, Tensor], y: Mapping[Key, Tensor]
    ) -> list[tuple[Tensor, Tensor, tuple[Atom, ...]]]:
        """The taps' leaves in the local spec, times the roots of their weights."""
        found = []
        for key, t in x.items():
            if isinstance(key, Tap) and (root := self.weight(key) ** 0.5):
                found += [(u * root, v * root, here) for (u, v), here in key.leaves(self.local, t, y[key])]
        return found

    def canonical_order(self) -> list[int]:
        """The models in an order that their orbits decide, wherever they were given: by norms in canonical gauges."""
        return sorted(self._all, key=lambda m: ([norms[m] for norms in self.norms.values()], m))
