"""The solver of nested groups: which block of the source goes where, and how it is turned on the way.

Spaces form trees: heads carry their rotations, experts carry neurons that carry scales. For a permuted base, the
score of sending block j to place i is the best that the fibres over it can do, so one linear assignment over those
scores is exact.

Spaces that act on one tensor together, none of them over the other, are coupled: query heads inside a group with
the group's rotation, and whatever a spec lets meet in one tensor. With all spaces but one where they are, the
objective ``<A, g B>`` is linear in that one, and its group's closed form is the optimum: coordinate ascent from
several starts, of which no step lowers the score. All permutations of one of the spaces are tried while these are
few, which is exact where nothing else is coupled; else the ascent ends in a local optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations
from math import factorial, prod

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.gram import Cross, Crosses
from isomerge.symmetry.language.spec import Spec

# Up to this many permutations of coupled fibres are all tried: 4! covers grouped queries of 4 per key-value head.
EXHAUSTIVE = 24
# Rounds of coordinate ascent; each round cannot lower the score, and practice needs fewer than ten.
ROUNDS = 30


@dataclass
class Solution:
    """Compact elements by space (dims named, representation last), and the score over the outer dims."""

    score: Cross
    elements: dict[str, Cross] = field(default_factory=dict)


class Coupled:
    """One component of a unit whose outermost spaces are several: ``tops``."""

    def __init__(self, solver: NestedSolver, tops: list[str], crosses: Crosses, outer: tuple[str, ...]) -> None:
        if over := sorted({name for sig in crosses for name in sig} - {*tops}):
            raise IsomergeError(
                f"{solver.spec.origin}: space {over[0]} lies over one of {', '.join(tops)}, which act on one "
                f"tensor together, and "
                f"nothing matches such an order: leave {over[0]} out, or let it lie over fewer axes"
            )
        self.solver, self.spec, self.crosses, self.outer, self.tops = solver, solver.spec, crosses, outer, tops
        shared = [set(solver.own(t, outer)) for t in tops]
        self.batch = (*outer, *(i for i in solver.own(tops[0], outer) if all(i in s for s in shared)))
        free = (t for t in tops if t not in solver.decided and self.spec.spaces[t].group.compact == "Perm")
        self.pivot = next(free, None)

    def solve(self, elements: bool = True) -> Solution:
        """The best that the starts lead to; ``elements``: whether they are wanted, or the score alone."""
        best = None
        for start, every in self.starts():
            trial = self.ascend(start, fixed=self.pivot if every else None)
            best = trial if best is None else _better(best, trial, self.batch)
        assert best is not None
        return Solution(best.score.reduce(self.outer), best.elements if elements else {})

    # ------------------------------------------------------------------- starts

    def starts(self) -> Iterator[tuple[dict[str, Tensor], bool]]:
        """Elements to start from, and whether the pivot's are all the permutations that there are."""

        if (pivot := self.pivot) is None:
            yield {}, False
            return
        n, dims = self.spec.sizes[pivot], self.dims(pivot)
        if factorial(n) <= EXHAUSTIVE and dims == self.batch:
            for p in permutations(range(n)):
                yield {pivot: torch.tensor(p).expand(*self.extent(pivot), n)}, True
            return
        # Every pair of query heads scored with fibres of its own gives one assignment, and each of its best pairs
        # one more start: the fibres that are best for this pair. None depends on the order in which heads are
        # stored.
        meeting = {
            (pivot, *(name for name in sig if name != pivot)): cross
            for sig, cross in self.crosses.items()
            if pivot in sig
        }
        profit = self.solver.profit(pivot, meeting, dims)
        p, _ = self.spec.spaces[pivot].group.solve(profit)
        yield {pivot: p}, False
        chosen = {sig[1:]: pick(c, pivot, p, dims) for sig, c in meeting.items() if len(sig) > 1}
        scores = profit.gather(-1, p[..., None]).squeeze(-1).reshape(-1, n).sum(0)
        for head in scores.argsort(descending=True, stable=True)[:EXHAUSTIVE].tolist():
            yield self._for_one({sig: _select(c, pivot, head) for sig, c in chosen.items()}), False

    def _for_one(self, alone: Crosses) -> dict[str, Tensor]:
        """The other spaces' elements that are best for one pair of the pivot's blocks, with the tensors that the
        pivot leaves."""
        problem = {sig: cross for sig, cross in self.crosses.items() if self.pivot not in sig}
        for sig, cross in alone.items():
            ends = (f"{name}{end}" for name in sig for end in "+-")
            dims = (*dict.fromkeys(i for name in sig for i in self.dims(name)), *ends)
            total = cross.reduce(dims).arrange(dims)
            problem[sig] = Cross(dims, total + (problem[sig].arrange(dims) if sig in problem else 0))
        elements = self.solver.solve(problem, self.batch).elements
        # those that nothing here decides begin at the first turn that they have
        return {name: _arranged(elements[name], self.dims(name)) for name in self.tops if name in elements}

    def dims(self, name: str) -> tuple[str, ...]:
        """The batch dims of a space's element: the problem's, and those that the space brings along."""
        return (*self.batch, *self.solver.own(name, self.batch))

    def extent(self, name: str) -> list[int]:
        """The lengths of `dims`."""
        lead = next(c for sig, c in self.crosses.items() if name in sig)
        return [lead.data.shape[lead.dims.index(d)] for d in self.dims(name)]

    # ------------------------------------------------------------------- ascent

    def ascend(self, start: dict[str, Tensor], fixed: str | None) -> Solution:
        """Coordinate ascent from a start; with the pivot fixed and nothing else coupled, one round is exact."""
        decided = {n: g.expand(*self.extent(n), *g.shape) for n, g in self.solver.decided.items() if n in self.tops}
        elements = {n: Cross((*self.dims(n), "*"), g) for n, g in {**start, **decided}.items()}
        order = [n for n in self.tops if n not in elements] + [n for n in start if n != fixed and n not in decided]
        once = fixed is not None and not any(len({*sig} - {fixed}) > 1 for sig in self.crosses)
        total: Cross | None = None
        for _ in range(1 if once else ROUNDS):
            self._turn(order, elements)
            before, total = total, self.total(elements)
            # the score cannot fall; a relative gain below 1e-9 everywhere is rounding
            if before is not None and bool((total.data - before.data <= 1e-9 * total.data.abs()).all()):
                break
        assert total is not None
        return Solution(total, elements)

    def _turn(self, order: list[str], elements: dict[str, Cross]) -> None:
        """One turn of every space; at first those wait whose every tensor has a space in it that had no turn."""
        waiting = list(order)
        while waiting:
            name = next((n for n in waiting if self._update(n, elements)), None)
            if name is None:  # no space has a tensor of its own: the first one stays where it is
                name = waiting[0]
                identity = self.spec.spaces[name].group.identity(tuple(self.extent(name)), self.spec.sizes[name])
                elements[name] = Cross((*self.dims(name), "*"), identity)
            waiting.remove(name)

    def _update(self, name: str, elements: dict[str, Cross]) -> bool:
        """Maximise over one space with the others as they are; False where no tensor of it can be looked at yet."""
        dims = (*self.dims(name), f"{name}+", f"{name}-")
        total = None
        for sig, cross in self.crosses.items():
            others = [s for s in sig if s != name]
            if name not in sig or any(o not in elements for o in others):
                continue
            part = self._contract(cross, others, elements).reduce(dims).arrange(dims)
            total = part if total is None else total + part
        if total is None:
            return False
        g, _ = self.spec.spaces[name].group.solve(total)
        elements[name] = Cross((*dims[:-2], "*"), g)
        return True

    def _contract(self, cross: Cross, names: list[str], elements: dict[str, Cross]) -> Cross:
        """Replace the index pairs of some spaces by their current elements."""
        for name in names:
            rest = tuple(d for d in cross.dims if d not in (f"{name}+", f"{name}-"))
            data = cross.arrange((*rest, f"{name}+", f"{name}-"))
            held = elements[name]
            group = self.spec.spaces[name].group
            width = held.data.ndim - (len(held.dims) - 1)
            lead = Cross(held.dims[:-1], held.data.flatten(-width) if width > 1 else held.data)
            g = lead.data
            order = [held.dims.index(d) for d in rest if d in held.dims]
            g = g.permute(*order, g.ndim - 1)
            for at, dim in enumerate(rest):
                if dim not in held.dims:
                    g = g.unsqueeze(at)
            g = g.expand(*data.shape[:-2], g.shape[-1])
            g = g.unflatten(-1, held.data.shape[-width:]) if width > 1 else g
            cross = Cross(rest, group.contract(g, data))
        return cross

    def total(self, elements: dict[str, Cross]) -> Cross:
        """The score of all elements, over the batch dims."""
        total = None
        for sig, cross in self.crosses.items():
            part = self._contract(cross, list(sig), elements).reduce(self.batch).arrange(self.batch)
            total = part if total is None else total + part
        assert total is not None
        return Cross(self.batch, total)


def pick(cross: Cross, name: str, p: Tensor, batch: tuple[str, ...]) -> Cross:
    """Keep the assigned pairs (i, p[i]) of a cross-Gram: the two dims of the base become one."""
    rest = tuple(d for d in cross.dims if d not in batch and d not in (f"{name}+", f"{name}-"))
    data = cross.arrange((*batch, f"{name}+", f"{name}-", *rest))
    index = p.reshape(*p.shape, 1, *([1] * len(rest)))
    at = len(batch) + 1
    shape = [*data.shape]
    shape[at] = 1
    return Cross((*batch, name, *rest), data.gather(at, index.expand(shape)).squeeze(at))


def _arranged(element: Cross, dims: tuple[str, ...]) -> Tensor:
    """An element with its batch dims in this order."""
    rest = range(len(element.dims) - 1, element.data.ndim)
    return element.data.permute(*(element.dims.index(d) for d in dims), *rest)


def _better(a: Solution, b: Solution, batch: tuple[str, ...]) -> Solution:
    """The better of two solutions, chosen for every batch entry."""

    take = b.score.arrange(batch) > a.score.arrange(batch)
    chosen = {}
    for name, held in a.elements.items():
        mask = take.reshape(*take.shape, *([1] * (held.data.ndim - take.ndim)))
        chosen[name] = Cross(held.dims, torch.where(mask, b.elements[name].data, held.data))
    return Solution(Cross(batch, torch.where(take, b.score.arrange(batch), a.score.arrange(batch))), chosen)


def _select(cross: Cross, name: str, at: int) -> Cross:
    """One entry of a dimension."""
    axis = cross.dims.index(name)
    return Cross(cross.dims[:axis] + cross.dims[axis + 1 :], cross.data.select(axis, at))


ROUNDED = 1 + 1e-5
"""Norms are summed in the dtype of cross-Grams, since a copy in float64 is twice a layer's: a bound is that much
higher than what float32 may have lost."""


class NestedSolver:
    """Solves ``max <A, g B>`` from cross-Grams for the spaces of one unit."""

    def __init__(self, spec: Spec, decided: dict[str, Tensor] | None = None) -> None:
        self.spec = spec
        self.decided = decided or {}

    # ---------------------------------------------------------------- structure

    def own(self, name: str, outer: tuple[str, ...]) -> tuple[str, ...]:
        """The batch indices that a space brings along: not spaces, not already among the outer dims."""
        return tuple(
            i for i in self.spec.batch(self.spec.spaces[name]) if i not in self.spec.spaces and i not in outer
        )

    def components(self, crosses: Crosses) -> list[tuple[list[str], Crosses]]:
        """Split into independent problems: the top-level spaces of each, and its cross-Grams."""
        names = list(dict.fromkeys(n for sig in crosses for n in sig))
        tops = [n for n in names if not set(self.spec.spaces[n].index) & set(names)]
        groups: list[set[str]] = []
        for sig in crosses:
            joined = set(sig).union(*(g for g in groups if g & set(sig)))
            groups = [g for g in groups if not g & set(sig)] + [joined]
        return [([t for t in tops if t in g], {s: c for s, c in crosses.items() if set(s) <= g}) for g in groups]

    # -------------------------------------------------------------------- solve

    def solve(self, crosses: Crosses, outer: tuple[str, ...] = (), elements: bool = True) -> Solution:
        """Solve all components; the scores add up.

        Args:
            crosses: cross-Grams by signature; every tensor has the ``outer`` dims.
            outer: batch dims of the problem, kept in the score.
            elements: whether the elements are wanted, or the score alone.
        """
        parts = [self._component(tops, own, outer, elements) for tops, own in self.components(crosses)]
        score = parts[0].score
        for part in parts[1:]:
            score = Cross(outer, score.arrange(outer) + part.score.arrange(outer))
        return Solution(score, {k: v for part in parts for k, v in part.elements.items()})

    def _component(self, tops: list[str], crosses: Crosses, outer: tuple[str, ...], elements: bool) -> Solution:
        if len(tops) > 1:
            return Coupled(self, tops, crosses, outer).solve(elements)
        (top,) = tops
        if list(crosses) == [(top,)]:
            return self._leaf(top, crosses[(top,)], outer, elements)
        return self._base(top, crosses, outer, elements)

    def _leaf(self, name: str, cross: Cross, outer: tuple[str, ...], elements: bool) -> Solution:
        """A space with nothing over it: one closed form for every batch entry."""
        batch = (*outer, *self.own(name, outer))
        group = self.spec.spaces[name].group
        data = cross.arrange((*batch, f"{name}+", f"{name}-"))
        if not elements and name not in self.decided:
            return Solution(Cross(batch, group.score(data)).reduce(outer))
        g, score = self._element(name, data)
        return Solution(Cross(batch, score).reduce(outer), {name: Cross((*batch, "*"), g)})

    def _element(self, name: str, data: Tensor) -> tuple[Tensor, Tensor]:
        group = self.spec.spaces[name].group
        if name in self.decided:
            g = self.decided[name].expand(*data.shape[:-2], *self.decided[name].shape)
            return g, group.contract(g, data)
        return group.solve(data)

    def _base(self, name: str, crosses: Crosses, outer: tuple[str, ...], elements: bool) -> Solution:
        """A permuted base with fibres over it: score every pair, assign, then solve the fibres of the pairs."""
        batch = (*outer, *self.own(name, outer))
        proven = self._proven(name, crosses, batch) if elements else None
        if proven is None:
            p, score = self._element(name, self.profit(name, crosses, batch))
            inner = self.solve(self._chosen(name, crosses, p, batch), (*batch, name)).elements if elements else {}
        else:
            p, score, inner = proven
        solution = Solution(Cross(batch, score).reduce(outer))
        if elements:
            solution.elements = {name: Cross((*batch, "*"), p)}
            solution.elements |= {k: self._to_source_labels(v, name, p, batch) for k, v in inner.items()}
        return solution

    def _chosen(self, name: str, crosses: Crosses, p: Tensor, batch: tuple[str, ...]) -> Crosses:
        """The cross-Grams of what lies over a base, of its assigned pairs."""
        return {sig[1:]: pick(c, name, p, batch) for sig, c in crosses.items() if len(sig) > 1}

    def _proven(
        self, name: str, crosses: Crosses, batch: tuple[str, ...]
    ) -> tuple[Tensor, Tensor, dict[str, Cross]] | None:
        """The assignment of a base, its score and what lies over it, where bounds prove it: of related models they
        do.

        Every block of the anchor goes with the one of the highest bound. Where these are all different, and each
        pair scores what no other pair of its block can, the assignment is optimal, and no other pair is solved.
        """

        if name in self.decided or self.spec.spaces[name].group.compact != "Perm":
            return None
        if all(self.spec.sizes[space] == 1 for sig in crosses for space in sig[1:]):
            return None  # of signs a bound is the score, which the assignment looks at by itself
        bound = self._bound(name, crosses, batch)
        p = bound.argmax(-1)
        n = bound.shape[-1]
        if not torch.equal(p.sort(-1).values, torch.arange(n).expand(p.shape)):
            return None
        inner = self.solve(self._chosen(name, crosses, p, batch), (*batch, name))
        score = inner.score.arrange((*batch, name)).double()
        if (name,) in crosses:
            own = crosses[(name,)].arrange((*batch, f"{name}+", f"{name}-")).double()
            score = score + own.gather(-1, p[..., None])[..., 0]
        others = bound.scatter(-1, p[..., None], -torch.inf).amax(-1)
        return (p, score.sum(-1), inner.elements) if bool((score >= others).all()) else None

    def _bound(self, name: str, crosses: Crosses, batch: tuple[str, ...]) -> Tensor:
        """What no pair of a base's blocks can score more than, [*batch, n, n] float64.

        Compact elements are orthogonal matrices, so that ``<C, g>`` is at most ``|C|_F`` times the root of their
        size.
        """

        pair = (*batch, f"{name}+", f"{name}-")
        total = None
        for sig, cross in crosses.items():
            sides = [f"{space}{end}" for space in sig[1:] for end in "+-"]
            rest = [dim for dim in cross.dims if dim not in pair and dim not in sides]
            data = cross.arrange((*pair, *rest, *sides))
            if sides:
                size = prod(data.shape[-len(sides) :: 2])
                data = torch.linalg.vector_norm(data.flatten(-len(sides)), dim=-1).double() * (size**0.5 * ROUNDED)
                data = data.flatten(len(pair)).sum(-1) if rest else data
            total = data.double() if total is None else total + data
        assert total is not None
        return total

    def profit(self, name: str, crosses: Crosses, batch: tuple[str, ...] = ()) -> Tensor:
        """The score [*batch, n, n] of sending the source's block j to the anchor's place i, fibres included."""
        pair = (*batch, f"{name}+", f"{name}-")
        fibres = {sig[1:]: c for sig, c in crosses.items() if len(sig) > 1}
        parts = [crosses[(name,)].arrange(pair)] if (name,) in crosses else []
        if fibres:
            parts.append(self.solve(fibres, pair, elements=False).score.arrange(pair))
        return sum(parts[1:], parts[0])

    def _to_source_labels(self, element: Cross, name: str, p: Tensor, batch: tuple[str, ...]) -> Cross:
        """Elements come out by the anchor's place i; the action wants the source's block p[i]."""
        at = element.dims.index(name)
        inverse = p.argsort(-1)
        shape = [1] * element.data.ndim
        for axis, dim in enumerate(batch):
            shape[element.dims.index(dim)] = inverse.shape[axis]
        shape[at] = inverse.shape[-1]
        order = sorted(
            range(inverse.ndim), key=lambda k: at if k == inverse.ndim - 1 else element.dims.index(batch[k])
        )
        index = inverse.permute(order).reshape(shape).expand(element.data.shape)
        return Cross(element.dims, element.data.gather(at, index))
