"""Spaces that act on one tensor together, none of them over the other: coordinate ascent of ``<A, g B>`` from several starts.

With all spaces but one where they are, the objective is linear in that one, and its group's closed form is the optimum: no
step lowers the score. Query heads inside a group with the group's rotation are such spaces, and so is whatever a spec lets
meet in one tensor. All permutations of one of the spaces are tried while these are few, which is exact where nothing else
is coupled; else the ascent ends in a local optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations
from math import factorial
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError
from isomerge.matching.gram import Cross, Crosses

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.matching.nested import NestedSolver

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
                f"{solver.spec.origin}: space {over[0]} lies over one of {', '.join(tops)}, which act on one tensor together, and "
                f"nothing matches such an order: leave {over[0]} out, or let it lie over fewer axes"
            )
        self.solver, self.spec, self.crosses, self.outer, self.tops = solver, solver.spec, crosses, outer, tops
        shared = [set(solver.own(t, outer)) for t in tops]
        self.batch = (*outer, *(i for i in solver.own(tops[0], outer) if all(i in s for s in shared)))
        free = (t for t in tops if t not in solver.given and self.spec.spaces[t].group.compact == "Perm")
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
        import torch

        if (pivot := self.pivot) is None:
            yield {}, False
            return
        n, dims = self.spec.sizes[pivot], self.dims(pivot)
        if factorial(n) <= EXHAUSTIVE and dims == self.batch:
            for p in permutations(range(n)):
                yield {pivot: torch.tensor(p).expand(*self.extent(pivot), n)}, True
            return
        # Every pair of query heads scored with fibres of its own gives one assignment, and each of its pairs one more
        # start: the fibres that are best for this pair. None depends on the order in which heads are stored.
        meeting = {
            (pivot, *(name for name in sig if name != pivot)): cross
            for sig, cross in self.crosses.items()
            if pivot in sig
        }
        p, _ = self.spec.spaces[pivot].group.solve(self.solver.profit(pivot, meeting, dims))
        yield {pivot: p}, False
        chosen = {sig[1:]: pick(c, pivot, p, dims) for sig, c in meeting.items() if len(sig) > 1}
        for head in range(n):
            yield self._for_one({sig: _select(c, pivot, head) for sig, c in chosen.items()}), False

    def _for_one(self, alone: Crosses) -> dict[str, Tensor]:
        """The other spaces' elements that are best for one pair of the pivot's blocks, with the tensors that the pivot leaves."""
        problem = {sig: cross for sig, cross in self.crosses.items() if self.pivot not in sig}
        for sig, cross in alone.items():
            ends = (f"{name}{end}" for name in sig for end in "+-")
            dims = (*dict.fromkeys(i for name in sig for i in self.dims(name)), *ends)
            total = cross.reduce(dims).arrange(dims)
            problem[sig] = Cross(dims, total + (problem[sig].arrange(dims) if sig in problem else 0))
        found = self.solver.solve(problem, self.batch).elements
        # those that nothing here decides begin at the first turn that they have
        return {name: _arranged(found[name], self.dims(name)) for name in self.tops if name in found}

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
        given = {n: g.expand(*self.extent(n), *g.shape) for n, g in self.solver.given.items() if n in self.tops}
        elements = {n: Cross((*self.dims(n), "*"), g) for n, g in {**start, **given}.items()}
        order = [n for n in self.tops if n not in elements] + [n for n in start if n != fixed and n not in given]
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
                one = self.spec.spaces[name].group.identity(tuple(self.extent(name)), self.spec.sizes[name])
                elements[name] = Cross((*self.dims(name), "*"), one)
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
    import torch

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
