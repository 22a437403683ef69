"""Whether two models' units lie in the same coordinates already: a cheap test that solves no assignment.

Fine-tunes of one base have every head and every neuron where the base has it, and nothing to gain by a rotation, a
factor or an addition. That is looked for slice by slice: a slice is all that one index of a permuted axis touches
(a neuron, a head), in both models. Slices that have lost their counterpart are compared with each other; what is
continuous, and what may be added (`isomerge.matching.additions`), is solved once, with every permutation at the
identity. The test may call two models misplaced that are not (they are matched then, which costs time); a unit
whose parts were exchanged, turned, rescaled or shifted by more than what training changes is never called settled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from isomerge.matching.additions import are_added
from isomerge.matching.distances import distance, squared_norm
from isomerge.matching.factors import Factors
from isomerge.matching.general_linear_orbit import Sides, newton, shortened, space_sides, squared_distance, trace
from isomerge.matching.gram import Leaf, paired_leaves
from isomerge.matching.worth import GAINED, by_chance
from isomerge.pieces import PIECE
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.units import elements_of

FAR = 0.9
"""Of the norm: models without a common base are further apart; sqrt(2) where they have nothing in common."""
ALIKE = 0.5
"""The least cosine of a slice with its counterpart; slices of unrelated models have about 0."""
FAINT = 1e-3
"""Of the mean square of a space's slices: what is smaller has no direction worth asking for (dead or pruned
neurons)."""
NOTHING, SLIGHT = 1e-4, 1e-2
"""Of the norm: distances of a unit, and of what one element acts on, that are below are rounding."""
REACHED = 1e-6
"""Of the squared distance: steps that promise less lead nowhere."""
STEPS = 4
"""Steps towards the best general linear element: enough to see most of what it gains."""
SUSPECTS = 1024
"""Slices without a counterpart that are compared with each other, at most."""


@dataclass
class Slices:
    """Sums over the slices of one space, float64 [*batch, n] each."""

    anchor: Tensor
    """Squares of the anchor's slices."""
    source: Tensor
    gap: Tensor
    """Squared distances of the two."""

    @property
    def solid(self) -> Tensor:
        """The slices that are there in both models."""

        mean = (self.anchor.mean() + self.source.mean()) / 2
        return torch.minimum(self.anchor, self.source) > FAINT * mean.clamp_min(1e-300)

    @property
    def cosine(self) -> Tensor:
        """Of every slice with its counterpart."""
        product = (self.anchor + self.source - self.gap) / 2
        return product / (self.anchor * self.source).sqrt().clamp_min(1e-300)

    @property
    def lost(self) -> Tensor:
        """The slices that have no counterpart in their place."""
        return self.solid & (self.cosine < ALIKE)


@dataclass
class Sums:
    """`Slices` of several spaces, added up over leaves."""

    spec: Spec
    names: Collection[str]
    slices: dict[str, Slices] = field(default_factory=dict)

    def add(self, leaves: Iterator[Leaf]) -> None:
        """Add the leaves of two models' blocks."""
        for x, y, atoms in leaves:
            names = [a.name for a in atoms]
            diagonal = {a.name for a in atoms if a.diag}
            for name in self.names:
                if names.count(name) == 1 and name not in diagonal:
                    order = [*(names.index(i) for i in self.spec.batch(self.spec.spaces[name])), names.index(name)]
                    self._add(name, x, y, order)

    def _add(self, name: str, x: Tensor, y: Tensor, order: list[int]) -> None:
        """Piece by piece along the first axis, so that products stay in the cache."""

        rest = [k for k in range(x.ndim) if k not in order]
        shape = [x.shape[k] for k in order]
        if name not in self.slices:
            self.slices[name] = Slices(*(torch.zeros(shape, dtype=torch.float64) for _ in range(3)))
        slices = self.slices[name]
        step = max(1, PIECE * len(x) // max(x.numel(), 1))
        for start in range(0, len(x), step):
            mine, theirs = x[start : start + step], y[start : start + step]
            for total, part in ((slices.anchor, mine), (slices.source, theirs), (slices.gap, mine - theirs)):
                square = part * part
                sums = square.permute(*order, *rest).flatten(len(order)).sum(-1) if rest else square.permute(order)
                place = total.narrow(order.index(0), start, len(mine)) if 0 in order else total
                place += sums.double()


def settled(spec: Spec, anchor: Blocks, source: Blocks) -> bool:
    """Whether all parts of a unit are where the anchor has them, whichever of the two would be moved.

    Args:
        spec: with the spaces active that may move.
        anchor, source: the unit's blocks, float32 or float64; not changed.
    """
    if are_added(spec, anchor, source):
        return False
    movable = [block for block in anchor if elements_of(spec, block)]
    norm = min(sum(squared_norm(t[b]) for b in movable) for t in (anchor, source))
    gap = distance({b: anchor[b] for b in movable}, source)
    if gap <= NOTHING**2 * norm:
        return True
    if gap >= FAR**2 * norm:
        return False
    spaces = _spaces_of(spec, anchor)
    sums = Sums(spec, [name for name, space in spaces.items() if _is_counted(spec, space)])
    sums.add(paired_leaves(spec, anchor, source))
    fibred = {index for space in spaces.values() for index in space.index}
    for name, slices in sums.slices.items():
        if bool((slices.solid & (slices.cosine <= -ALIKE)).any()):
            return False  # turned round
        lost = slices.lost
        if not bool(lost.any()) or spaces[name].group.compact not in ("Perm", "SignedPerm"):
            continue
        # a head may have gone to another place and been turned as well, so that no other one looks like it
        if (
            name in fibred
            or lost.sum() > max(slices.solid.sum() / 2, 1)
            or _elsewhere(spec, name, slices, anchor, source)
        ):
            return False
    return not is_turned(spec, anchor, source)


def _spaces_of(spec: Spec, blocks: Blocks) -> dict[str, Space]:
    """What moves some blocks, by name."""
    return {space.name: space for block in blocks for space in elements_of(spec, block).values()}


def _is_counted(spec: Spec, space: Space) -> bool:
    """Whether the slices of a space keep their identity: of a rotation they do not."""
    return space.group.compact in ("Perm", "SignedPerm", "Sign") and spec.sizes[space.name] > 1


def _elsewhere(spec: Spec, name: str, slices: Slices, anchor: Blocks, source: Blocks) -> bool:
    """Whether a slice that lost its counterpart has one in another place of the same batch."""

    lost = slices.lost.flatten().nonzero()[:SUSPECTS, 0]
    batch = lost // slices.lost.shape[-1]
    products = torch.zeros(len(lost), len(lost), dtype=torch.float64)
    for x, y, atoms in paired_leaves(spec, anchor, source):
        names = [a.name for a in atoms]
        if names.count(name) == 1:
            order = [*(names.index(i) for i in spec.batch(spec.spaces[name])), names.index(name)]
            rest = [k for k in range(x.ndim) if k not in order]
            mine, theirs = (
                t.permute(*order, *rest).reshape(slices.lost.numel(), -1)[lost].double() for t in (x, y)
            )
            products += mine @ theirs.mT
    norms = slices.anchor.flatten()[lost].outer(slices.source.flatten()[lost]).sqrt().clamp_min(1e-300)
    cosines = products / norms
    cosines = cosines.abs() if spec.spaces[name].group.compact == "SignedPerm" else cosines
    other = (batch[:, None] == batch) & ~torch.eye(len(lost), dtype=torch.bool)
    return bool((cosines[other] >= ALIKE).any())


def is_turned(spec: Spec, anchor: Blocks, source: Blocks, *, most: int | None = None) -> bool:
    """Whether what an element of a continuous space acts on is foreign, or is so mostly by that element; see
    `settled`.

    Args:
        most: how many heads are asked, evenly spread; None: all.
    """
    for space in _spaces_of(spec, anchor).values():
        if not space.group.dimension(spec.sizes[space.name]):
            continue
        sides, chance = space_sides(spec, space, anchor, source, most=most), None
        for own in (sides, sides.exchanged):
            norm, moved = trace(own.anchor_plus + own.anchor_minus), trace(own.moved_plus + own.moved_minus)
            shared = trace(own.plus + own.minus)
            gap = norm + moved - 2 * shared
            asked = (gap > SLIGHT**2 * norm) & (torch.minimum(norm, moved) > FAINT * norm.mean())
            if bool((asked & (shared < ALIKE * (norm * moved).sqrt())).any()):
                return True  # foreign
            if not bool(asked.any()):
                continue
            gain = _gain(space, own, torch.where(asked, GAINED * gap, torch.inf))
            if bool((asked & (gain > GAINED * gap)).any()):
                chance = _gained_by_chance(spec, space, anchor, source) if chance is None else chance
                if bool((asked & (gain > max(GAINED, chance) * gap)).any()):
                    return True
    return False


def _gained_by_chance(spec: Spec, space: Space, anchor: Blocks, source: Blocks) -> float:
    """What an element takes away so, by its dimensions among the entries that it acts on."""
    batch = prod(spec.sizes[name] for name in spec.batch(space))
    leaves = paired_leaves(spec, anchor, source)
    entries = sum(x.numel() for x, _, atoms in leaves if space.name in {atom.name for atom in atoms})
    return by_chance(space.group.dimension(spec.sizes[space.name]), entries / batch)


def _gain(space: Space, sides: Sides, least: Tensor) -> Tensor:
    """By how much an element lowers the squared distance, [*batch]: never by more than the best one does, but for
    rotary pairs, whose phase and factor are counted each for itself. Less than ``least`` [*batch] need not be
    exact."""

    name, group = space.group_name, space.group
    cross = sides.plus + sides.minus
    stay = trace(cross)
    if name in ("O", "OFixingOnes", "Turn"):
        return 2 * (group.score(cross) - stay)
    if name == "GL":
        return _linear_gain(space, sides, least)
    turned = torch.zeros_like(stay)
    if name == "Complex":
        turned = 2 * (torch.hypot(stay, cross[..., 1, 0] - cross[..., 0, 1]) - stay)
    alpha, beta, plus, minus = map(trace, (sides.moved_plus, sides.moved_minus, sides.plus, sides.minus))
    sums, factors = (alpha, beta, plus, minus), Factors.of("PositiveScale" if name == "Complex" else name)
    return turned + alpha + beta - 2 * stay - factors.cost(factors.best(*sums), *sums)


def _linear_gain(space: Space, sides: Sides, least: Tensor) -> Tensor:
    """By how much a rotation and a few Gauss-Newton steps from there lower the squared distance, [*batch]; no step
    more where twice what it promises leaves all gains below ``least``."""
    flat, n = sides.flat(), sides.plus.shape[-1]
    stay = space.group.identity((len(flat.plus),), n)
    element, _ = space.group.solve(flat.plus + flat.minus)
    begin, value = squared_distance(flat, stay), squared_distance(flat, element)
    for _ in range(STEPS):
        step, promise = newton(flat, element, narrow=True, gauss=True)
        little = (begin - value + 2 * promise < least.flatten()) | (promise <= REACHED * begin)
        if bool(little.all()):
            break
        element, value = shortened(flat, element, value, step, promise)
    return (begin - value).reshape(least.shape)
