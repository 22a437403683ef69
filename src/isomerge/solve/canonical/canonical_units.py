"""The units of several models in their canonical gauges: read one unit of all models at a time, kept while they
fit.

A unit of one model is a mapping from blocks (weights) and taps (activations) to tensors; both have typed axes, so
that an element moves them alike and both have cross-Grams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import fsum

import torch
from torch import Tensor

from isomerge.matching.balance import gauge_of
from isomerge.matching.distances import squared_distance, squared_norm
from isomerge.matching.frame import WeightedLeaf, has_shared_meaning
from isomerge.matching.gram import Leaf
from isomerge.matching.local import compact_solution, vote
from isomerge.models.free_streams import unread_gains
from isomerge.models.peak_memory import CACHE
from isomerge.models.recognised import Model, Moved
from isomerge.models.unit_plan import Plan
from isomerge.observe.live.accelerator import CPU, at_home, on
from isomerge.observe.stats.taps import Activations, Tap
from isomerge.solve.canonical.canonical_frame import folding
from isomerge.solve.match_options import SHARES
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks, leaves, stacked_axes
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import Unit

Key = Block | Tap
Tensors = dict[Key, "Tensor"]
"""One unit of one model; not to be changed."""


def moved(g: Alignment, tensors: Mapping[Key, Tensor]) -> Tensors:
    """A unit moved by an element; what nothing moves is shared with the given one."""
    if not len(g):
        return dict(tensors)
    moved_tensors: Tensors = {**g.applied(weights_of(tensors))}
    for key, t in tensors.items():
        if isinstance(key, Tap):
            moved_tensors[key] = t.clone()
            for (view,), atoms in key.leaves(g.spec, moved_tensors[key]):
                g.act_on_view(view, atoms, dict(key.scope))
    return moved_tensors


def weights_of(tensors: Mapping[Key, Tensor]) -> Blocks:
    """A unit without its activations."""
    return {key: t for key, t in tensors.items() if isinstance(key, Block)}


def parts_of(spec: Spec, key: Key, tensor: Tensor) -> list[Tensor]:
    """The parts of a block that are weighed alone: of one that numbers experts those that files store as tensors of
    their own as well (gates and ups), so that a match does not depend on how; of any other, and of taps, the whole.
    """
    if isinstance(key, Tap) or not stacked_axes(key, spec):
        return [tensor]
    return [part for (part,), _, _ in leaves(spec, key, tensor)] or [tensor]


def leaves_of(spec: Spec, key: Key, *tensors: Tensor) -> Iterator[tuple[tuple[Tensor, ...], tuple[Atom, ...]]]:
    """The atom views of the tensors of one block or tap, and their atoms."""
    if isinstance(key, Tap):
        yield from key.leaves(spec, *tensors)
    else:
        yield from ((views, atoms) for views, atoms, _ in leaves(spec, key, *tensors))


class CanonicalUnits:
    """Reads the units of several models, gains folded, in their canonical gauges.

    Args:
        models: compatible models.
        plan: the plan over their shared blocks, made for the first.
        dtype: the working dtype.
        shares: how much every model's norms count where tensors are weighed, with sum one: with all on the first,
            it is the anchor.
        activations: centred ones of every model, each in its own coordinates.
        evidence: with activations, what counts: a key of `SHARES`.
        room: bytes of units that are kept between passes; others are read again.
        to_gauge: brings blocks to their gauge in place, as `canonical_gauge` does; `gauge_of` the plan without it.
    """

    def __init__(
        self,
        models: Sequence[Model],
        plan: Plan,
        dtype: torch.dtype,
        shares: Sequence[float],
        activations: Sequence[Activations] | None = None,
        evidence: str = "both",
        *,
        room: int = CACHE,
        to_gauge: Callable[[Spec, Blocks], tuple[Alignment, list[str]]] | None = None,
    ) -> None:
        self.models, self.plan, self.dtype, self.shares = tuple(models), plan, dtype, tuple(shares)
        self.to_gauge = to_gauge or gauge_of(plan.selection)
        self.local = plan.selection.inner
        self.solved = self.local
        if not plan.selection.rotate:  # what is continuous is balanced alone
            spaces = self.local.spaces.items()
            still = [n for n, space in spaces if not space.group.dimension(self.local.sizes[n])]
            self.solved = self.local.restrict(still)
        self.frame = plan.selection.frame or plan.selection.spec
        blocks = [block for unit in plan.framed for block in unit.blocks]
        unread = unread_gains(models)
        self.folds = [folding(model, self.frame, blocks, dtype, unread) for model in models]
        self._folded = [model.seen(Moved(fold)) for model, fold in zip(models, self.folds, strict=True)]
        self.activations = activations
        self.evidence = SHARES[evidence] if activations else SHARES["weights"]
        self.weights: dict[str, tuple[float, ...]] = {}
        """By block, for each of its parts (see `parts_of`), and by tap."""
        self.norms: dict[str, list[float]] = {}
        """Squared norms of every block in the canonical gauge, by model: the same all over an orbit."""
        self.dead: set[str] = set()
        self.device = CPU
        """Where units are given; `go` changes it."""
        self._gauges: dict[str, list[Alignment]] = {}
        self._cache: dict[str, list[Tensors]] = {}
        self._room = room

    def go(self, device: str) -> None:
        """Take all that is kept to a device; what is read from now on goes there as well."""
        if device == self.device:
            return
        self.device = device
        self._gauges = {unit: [gauge.to(device) for gauge in gauges] for unit, gauges in self._gauges.items()}
        self._cache = {unit: [on(device, tensors) for tensors in every] for unit, every in self._cache.items()}

    def folded(self, m: int, block: Block) -> Tensor:
        """A block of one model with gains folded."""
        with at_home(self.device):
            return self._folded[m].assemble(block, self.dtype)

    def canonical(self, unit: Unit) -> list[Tensors]:
        """A unit of every model, floating point only."""
        if unit.key in self._cache:
            return self._cache[unit.key]
        with at_home(self.device):
            read = [model.unit(unit.blocks, self.dtype) for model in self._folded]
        every = [on(self.device, {b: t for b, t in x.items() if t.is_floating_point()}) for x in read]
        gauges = [Alignment(self.local) for _ in self._all]
        if self.plan.is_matched(unit):
            gauges = []
            for tensors in every:
                to, dead = self.to_gauge(self.local, tensors)
                gauges.append(to)
                self.dead |= {*dead}
            self._gauges[unit.key] = gauges
        self._weigh(every)
        with_taps: list[Tensors] = [{**tensors} for tensors in every]
        self._add_taps(unit, with_taps, gauges)
        size = sum(t.nbytes for tensors in with_taps for t in tensors.values())
        if size <= self._room:
            self._room -= size
            self._cache[unit.key] = with_taps
        return with_taps

    def gauges(self, unit: Unit) -> list[Alignment]:
        """What brings every model to its gauge in a matched unit."""
        if unit.key not in self._gauges:
            self.canonical(unit)
        return self._gauges[unit.key]

    @property
    def _all(self) -> range:
        return range(len(self.models))

    def _mean(self, values: Sequence[float]) -> float:
        """The mean of a number of every model; what counts nothing may be infinite."""
        return fsum(share * x for share, x in zip(self.shares, values, strict=True) if share)

    def _weigh(self, every: Sequence[Mapping[Block, Tensor]]) -> None:
        """How much blocks count: all alike inside layers; with streams or activations, by the inverse of the norm.

        So no embedding outvotes a layer.
        """
        for block in every[0]:
            if block.key in self.weights:
                continue
            parts = [[squared_norm(x) for x in parts_of(self.frame, block, tensors[block])] for tensors in every]
            self.norms[block.key] = [fsum(norms) for norms in parts]
            means = [self._mean([norm**0.5 for norm in norms]) for norms in zip(*parts, strict=True)]
            even = not self.plan.selection.streams and self.activations is None
            self.weights[block.key] = tuple(
                1.0 if even else self.evidence[0] / mean if mean > 0 else 0.0 for mean in means
            )

    def _add_taps(self, unit: Unit, units: list[Tensors], gauges: Sequence[Alignment]) -> None:
        """The activations that belong to a unit, in the frame of its blocks; each counts as much as its weight
        does."""
        if self.activations is None:
            return
        norms = {block.key: self.norms[block.key] for block in unit.blocks if block.key in self.norms}
        with at_home(self.device):
            every = [
                activations.only(set(norms)).moved(gauge.to(CPU) @ fold)
                for activations, gauge, fold in zip(self.activations, gauges, self.folds, strict=True)
            ]
        for key, tap in every[0].taps.items():
            values = [a.values[key] for a in every if key in a.values]
            if len(values) == len(every) and (mean := self._mean([squared_norm(x) for x in values])) > 0:
                size = self._mean([norm**0.5 for norm in norms[tap.block]])
                self.weights[tap.key] = (self.evidence[1] * size / mean,)
                for tensors, x in zip(units, values, strict=True):
                    tensors[tap] = x.to(self.device)

    # ------------------------------------------------------------------ measures

    def _weighted(self, key: Key, *tensors: Tensor) -> Iterator[tuple[list[Tensor], float]]:
        """The parts of tensors of one block or tap, and how much their squared distances count; those that count
        nothing are left out."""
        of_each = [parts_of(self.frame, key, tensor) for tensor in tensors]
        for *parts, weight in zip(*of_each, self.weights.get(key.key, ()), strict=False):
            if weight:
                yield parts, weight

    def distance(self, x: Mapping[Key, Tensor], y: Mapping[Key, Tensor]) -> float:
        """The weighted squared distance of one unit of two models."""
        return sum(
            weight * squared_distance(a, b)
            for key, t in x.items()
            for (a, b), weight in self._weighted(key, t, y[key])
        )

    def leaves(
        self, x: Mapping[Key, Tensor], y: Mapping[Key, Tensor], *, shared: bool = False
    ) -> Iterator[WeightedLeaf]:
        """The weighted atom views of one unit of two models; ``shared``: of what means the same in all models."""
        for key, t in x.items():
            weights = self.weights.get(key.key, ())
            if any(weights) and (
                not shared or not isinstance(key, Block) or has_shared_meaning(self.frame, key, vectors=True)
            ):
                for number, ((u, v), atoms) in enumerate(leaves_of(self.frame, key, t, y[key])):
                    if weight := weights[number if len(weights) > 1 else 0]:
                        yield u, v, atoms, weight

    def canonical_order(self) -> list[int]:
        """The models in an order that their orbits decide, wherever they were given: by norms in canonical
        gauges."""
        return sorted(self._all, key=lambda m: ([norms[m] for norms in self.norms.values()], m))

    # ----------------------------------------------------------------- solutions

    def solution(
        self,
        aim: Mapping[Key, Tensor],
        turned: Mapping[Key, Tensor],
        votes: dict[str, Tensor],
        *,
        spec: Spec | None = None,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> Alignment:
        """The compact elements that bring one unit of a model closest to another's.

        Args:
            aim, turned: the unit to match, and the one that is moved.
            votes: elements that are decided for a whole stack, by space.
            spec: of the spaces that are solved, if not all that may be.
            factors: what the weights of blocks and of taps are multiplied by.
        """
        spec, (of_blocks, of_taps) = spec or self.solved, factors
        a, b = (self._rooted(x, of_blocks) for x in (aim, turned))
        more: list[Leaf] = []
        for key, t in aim.items():
            root = (self.weights.get(key.key, (0.0,))[0] * of_taps) ** 0.5 if isinstance(key, Tap) else 0.0
            if isinstance(key, Tap) and root:
                more += [(u * root, v * root, atoms) for (u, v), atoms in key.leaves(spec, t, turned[key])]
        return compact_solution(spec, a, b, votes, more)

    def vote(self, aim: Mapping[Key, Tensor], turned: Mapping[Key, Tensor], name: str) -> Tensor:
        """One unit's profit [n, n] for every pair of a stack-wide space, by the weights of its blocks."""
        return vote(self.local, self._rooted(aim), self._rooted(turned), name)

    def _rooted(self, tensors: Mapping[Key, Tensor], factor: float = 1.0) -> Blocks:
        """The blocks of a unit times the roots of their weights, as local solvers take them; those that count
        nothing as they are."""
        rooted = weights_of(tensors)
        for block, t in rooted.items():
            roots = [(weight * factor) ** 0.5 for weight in self.weights.get(block.key, ())]
            if not {*roots} <= {0.0, 1.0}:
                rooted[block] = t.clone()
                for part, root in zip(parts_of(self.frame, block, rooted[block]), roots, strict=True):
                    part *= root or 1.0
        return rooted
