"""The solver of nested groups: which block of the source goes where, and how it is turned on the way.

Spaces form trees: heads carry their rotations, experts carry neurons that carry scales. For a permuted base, the
score of sending block j to place i is the best that the fibres over it can do, so one linear assignment over those
scores is exact. Fibres that act on one tensor together (query heads inside a group with the group's rotation) are
solved exactly by trying all permutations while these are few, and else by coordinate ascent from several starts.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from isomerge.matching.coupled import Coupled, Solution, pick
from isomerge.matching.gram import Cross, Crosses
from isomerge.symmetry.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


ROUNDED = 1 + 1e-5
"""Norms are summed in the dtype of cross-Grams, since a copy in float64 is twice a layer's: a bound is that much higher than what
float32 may have lost."""


class NestedSolver:
    """Solves ``max <A, g B>`` from cross-Grams for the spaces of one unit."""

    def __init__(self, spec: Spec, given: dict[str, Tensor] | None = None) -> None:
        self.spec = spec
        self.given = given or {}

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
        if not elements and name not in self.given:
            return Solution(Cross(batch, group.score(data)).reduce(outer))
        g, score = self._element(name, data)
        return Solution(Cross(batch, score).reduce(outer), {name: Cross((*batch, "*"), g)})

    def _element(self, name: str, data: Tensor) -> tuple[Tensor, Tensor]:
        group = self.spec.spaces[name].group
        if name in self.given:
            g = self.given[name].expand(*data.shape[:-2], *self.given[name].shape)
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
        found = Solution(Cross(batch, score).reduce(outer))
        if elements:
            found.elements = {name: Cross((*batch, "*"), p)}
            found.elements |= {k: self._to_source_labels(v, name, p, batch) for k, v in inner.items()}
        return found

    def _chosen(self, name: str, crosses: Crosses, p: Tensor, batch: tuple[str, ...]) -> Crosses:
        """The cross-Grams of what lies over a base, of its assigned pairs."""
        return {sig[1:]: pick(c, name, p, batch) for sig, c in crosses.items() if len(sig) > 1}

    def _proven(
        self, name: str, crosses: Crosses, batch: tuple[str, ...]
    ) -> tuple[Tensor, Tensor, dict[str, Cross]] | None:
        """The assignment of a base, its score and what lies over it, where bounds prove it: of related models they do.

        Every block of the anchor goes with the one of the highest bound. Where these are all different, and each pair scores
        what no other pair of its block can, the assignment is optimal, and no other pair is solved.
        """
        import torch

        if name in self.given or self.spec.spaces[name].group.compact != "Perm":
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

        Compact elements are orthogonal matrices, so that ``<C, g>`` is at most ``|C|_F`` times the root of their size.
        """
        import torch

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
