"""Neurons of related models matched without all pairs: nearest neighbours in a sketch, and a proof.

The neurons of two models are points x_i and y_j (all weights that one permutation moves). With orthonormal columns
S a sketch never lengthens a distance: ``|S^T (x_i - y_j)| <= |x_i - y_j|``. Take for every y_j the x_i that is
nearest in the sketch, and its exact distance r_j. If no other x_i is nearer than r_j *in the sketch*, this one is
the nearest; and if the nearest ones of all y_j are different, they are the optimal assignment, since every term of
its cost is at its least. Nothing is ever proven wrongly: what the sketch cannot tell is left to the assignment over
all pairs. 32 directions of some thousand tell related models (twins, fine-tunes). Signs that act on a part
of a neuron (gated layers) are minimised over in every distance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.matching.gram import Cross, Leaf, signature
from isomerge.matching.nested import NestedSolver, Solution
from isomerge.matching.points import Points, evenly, exact_distances, in_groups, squared_norms
from isomerge.symmetry.language.spec import Space, Spec

SMALLEST = 256
"""Neurons below which the assignment over all pairs is as fast: two milliseconds."""
DIRECTIONS = 32
"""Of the first sketch, which tells how many it will take."""
ENOUGH, BESIDE, STEP = 4.0, 1.25, 16
"""How much longer a sketch is on average than the longest distance that it must tell, squared, beside so many steps
of so many directions: of all pairs the shortest sketches are that much shorter."""
WORTH = 1 / 4
"""The share of all dimensions above which a sketch costs as much as what it saves."""
SAMPLE = 32
"""Neurons that are tried first: unrelated models are left to the assignment for the price of these."""
MARGIN = 1e-4
"""Of the squared norms of two sketches: by how much a distance must be larger. Rounding in float32 is below a
hundredth of it."""
ROWS = 256
"""Points of which distances to all others are held at once."""


def solve_neurons(solver: NestedSolver, leaves: Sequence[Leaf]) -> Solution | None:
    """The proven optimum of a unit that one permutation acts on, alone or with a sign or a scale per neuron.

    Returns None where the unit is another, small, or the proof fails. The solution has no score: nothing of what is
    compared depends on it.
    """

    names = _neurons(solver, leaves)
    if names is None:
        return None
    top, fibre = names
    anchor, source = _points(solver.spec, leaves, top, fibre)
    match = nearest(anchor, source)
    if match is None:
        return None
    p, sign = match
    elements = {top: Cross(("*",), p)}
    if fibre is not None:
        elements[fibre] = Cross((top, "*"), sign.unsqueeze(-1))
    return Solution(Cross((), torch.zeros((), dtype=torch.float64)), elements)


def _neurons(solver: NestedSolver, leaves: Sequence[Leaf]) -> tuple[str, str | None] | None:
    """The permuted space of a unit and the sign or scale over it; None where there is anything else."""
    spec = solver.spec
    used = {name for _, _, atoms in leaves for name in signature(spec, atoms)}
    tops = [n for n in used if not set(spec.spaces[n].index) & used]
    if len(tops) != 1 or len(used) > 2 or used & set(solver.decided):
        return None
    top, fibre = tops[0], next((n for n in used if n != tops[0]), None)
    space = spec.spaces[top]
    if space.group.compact != "Perm" or solver.own(top, ()) or spec.sizes[top] < SMALLEST:
        return None
    if fibre is not None and (solver.own(fibre, (top,)) or not _is_number(spec, spec.spaces[fibre])):
        return None
    return top, fibre


def _is_number(spec: Spec, space: Space) -> bool:
    """Whether what is left of a space once it is balanced is a sign, or nothing, per neuron."""
    return space.group.compact in ("Sign", "Fixed") and spec.sizes[space.name] == 1


def _points(spec: Spec, leaves: Sequence[Leaf], top: str, fibre: str | None) -> tuple[Points, Points]:
    """The neurons of the anchor and of the source."""
    flips = fibre is not None and spec.spaces[fibre].group.compact == "Sign"
    sides: tuple[dict[bool, list[Tensor]], dict[bool, list[Tensor]]] = ({}, {})
    for x, y, atoms in leaves:
        names = [a.name for a in atoms]
        if top not in names:
            continue
        for side, t in zip(sides, (x, y), strict=True):
            rows = t.movedim(names.index(top), 0).reshape(t.shape[names.index(top)], -1)
            side.setdefault(flips and fibre in names, []).append(rows)
    first, second = (Points(tuple(side.get(False, ())), tuple(side.get(True, ()))) for side in sides)
    return first, second


# ------------------------------------------------------------------- certificate


def nearest(anchor: Points, source: Points) -> tuple[Tensor, Tensor] | None:
    """For every anchor the source's point that the optimal assignment gives it, and the source's signs; None if not
    proven.

    Args:
        anchor, source: of n points each, float32 or float64, on the CPU.

    Returns:
        int64 [n] and float64 [n] by the source's own numbers.
    """

    sketch, n = telling_sketch(anchor, source), len(anchor.parts[0])
    if sketch is None:
        return None
    every = torch.arange(n)
    best, sign, proven = sketch.neighbours(every, anchor, source)
    if len(left := every[~proven]) > ROWS:
        return None
    if len(left):  # a few are asked in all dimensions
        whole = Sketch(anchor, source, (squared_norms(anchor), squared_norms(source)))
        best[left], sign[left], proven = whole.neighbours(left, anchor, source)
    if not bool(proven.all()) or len(best.unique()) < n:
        return None
    return best.argsort(), sign.double()


@dataclass(frozen=True)
class Sketch:
    """The points of both models in a few directions, the same for both, and their squared norms there [n]."""

    anchor: Points
    source: Points
    squares: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, anchor: Points, source: Points, directions: int) -> Sketch:
        """Fixed and signed parts in orthonormal directions of their own; all of them where a part has fewer."""
        sides = [_mapped(points, directions) for points in (anchor, source)]
        squares = [squared_norms(side) for side in sides]
        return cls(sides[0], sides[1], (squares[0], squares[1]))

    def neighbours(self, some: Tensor, anchor: Points, source: Points) -> tuple[Tensor, Tensor, Tensor]:
        """For some points of the source the nearest anchor, the sign that it is so near with, and whether it is
        proven nearest."""
        best, other = self.two_nearest(some)
        exact, sign = exact_distances(
            anchor, source.take(some) if len(some) < len(self.squares[1]) else source, best
        )
        margin = MARGIN * (self.squares[0].max() + self.squares[1][some])
        return best, sign, other > exact + margin

    def two_nearest(self, some: Tensor) -> tuple[Tensor, Tensor]:
        """For some points of the source the number of the nearest anchor in the sketch, and its squared distance to
        the next."""

        best, other = [], []
        room = self.squares[0].new_empty(2, min(ROWS, len(some)), len(self.squares[0]))
        for rows in some.split(ROWS):
            distance = self._distances(self.source.take(rows), room[:, : len(rows)])
            # numpy's search is ten times as fast as torch's
            first = torch.from_numpy(distance.cpu().numpy().argmin(1)).to(distance.device)
            distance[torch.arange(len(rows)), first] = torch.inf
            best.append(first)
            other.append(distance.amin(1) + self.squares[1][rows])
        return torch.cat(best), torch.cat(other)

    def _distances(self, source: Points, room: Tensor) -> Tensor:
        """Squared distances [source, anchor] in the sketch, less the squared norms of the source's."""

        total = room[0]
        start = self.squares[0].expand_as(total)
        for x, y in zip(self.anchor.fixed, source.fixed, strict=True):
            start = torch.addmm(start, y, x.mT, alpha=-2, out=total)
        if not self.anchor.fixed:
            total.copy_(start)
        inner = None
        for x, y in zip(self.anchor.signed, source.signed, strict=True):
            inner = torch.mm(y, x.mT, out=room[1]) if inner is None else inner.addmm_(y, x.mT)
        return total if inner is None else total.sub_(inner.abs_(), alpha=2)


def telling_sketch(
    anchor: Points, source: Points, cost_of: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Sketch | None:
    """A sketch of enough directions that it will tell all neighbours, as some points of the source say; None where
    these are too many.

    A sketch in k of D dimensions has k / D of a squared distance on average. That of two neurons that do not belong
    together must be longer in the sketch than that of two that do is in all dimensions.

    Args:
        anchor, source: of as many points each.
        cost_of: what pairs cost, by the numbers of anchors and of points of the source; None: their squared
            distances.
    """
    n, width = len(anchor.parts[0]), sum(x.shape[1] for x in anchor.parts)
    sketch = Sketch.of(anchor, source, min(DIRECTIONS, width))
    some = evenly(n, min(SAMPLE, n), anchor.parts[0].device)
    best, _ = sketch.two_nearest(some)
    if len(best.unique()) < len(some):
        return None
    points = source.take(some)
    cost = exact_distances(anchor, points, best)[0] if cost_of is None else cost_of(best, some)
    apart, _ = exact_distances(anchor, points, best.roll(1))
    ratio = float((cost / apart.clamp_min(torch.finfo(apart.dtype).tiny)).max())
    if not ratio <= 1:  # NaN as well
        return None
    directions = STEP * round(BESIDE + ENOUGH * ratio * width / STEP)
    if directions > max(DIRECTIONS, WORTH * width):
        return None
    return sketch if directions == DIRECTIONS else Sketch.of(anchor, source, directions)


def _mapped(points: Points, directions: int) -> Points:
    """The sketch of all points: one tensor [n, about ``directions``] for the fixed parts, one for the signed
    ones."""

    width = sum(x.shape[1] for x in points.parts)
    kinds = (
        [in_groups(x, -(-directions * x.shape[1] // width)) for x in parts]
        for parts in (points.fixed, points.signed)
    )
    return Points(*((torch.cat(pieces, 1),) if pieces else () for pieces in kinds))
