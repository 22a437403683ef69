"""A metric on weights that no symmetry changes, and the gradient in it.

At a plain leaf of GL the metric is ``tr(P^-1 D D^T)`` with ``P = A / t``: A the Gram of all plain leaves of the
element, B that of the dual ones, ``t^2 = tr(A B) / n``. Under g, ``A -> g A g^T`` and ``B -> g^-T B g^-1``, t
stays; so the gradient in the metric, ``P G``, moves as the weights do (``G -> g^-T G``), and steps commute with g.
Dual leaves have ``B / t``. (Absil, Mahony and Sepulchre, Optimization Algorithms on Matrix Manifolds, 2008, section
3.6; Mishra et al., Fixed-rank matrix factorizations and Riemannian low-rank optimization, 2014.) At a balanced
point with isotropic Grams P is the identity, so that learning rates mean what they mean elsewhere; for scales and
rotary pairs ``P = (A / B)^(1/2)`` is the plain gradient of the balanced point, wherever one stands.

Where spaces meet in one tensor, the Gram of one must not feel the elements of the other: the other axis is
contracted with the other space's Gram of the *opposite* side, which transforms inversely. No Gram is inverted, so
nothing is damped; an element one of whose sides is zero has the identity for P, for there is nothing there to
measure by.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.quotient.optim.families import Family, Touch
from isomerge.quotient.optim.layout import Leaf
from isomerge.quotient.optim.movement import act, multiply
from isomerge.quotient.optim.vertical import VerticalSpace

Side = tuple[str, bool]
"""A family's name, and whether its dual side is meant."""


class InvariantMetric:
    """The order in which the Grams of a module are made; nothing here depends on the values of the parameters.

    Args:
        space: of the module.

    Raises:
        IsomergeError: spaces meet in a circle, so that no Gram can come first.
    """

    def __init__(self, space: VerticalSpace) -> None:
        self.space = space
        self.on_leaf: dict[Leaf, list[Touch]] = {}
        for family in space.families:
            for touch in family.touches:
                self.on_leaf.setdefault(touch.leaf, []).append(touch)
        self.order = self._order()

    def _needs(self, family: Family, dual: bool) -> set[Side]:
        """The Grams by which those of one side are weighted."""
        return {
            (other.family.name, not other.dual)
            for touch in family.touches
            if touch.dual == dual and not touch.free
            for other in self.on_leaf[touch.leaf]
            if other is not touch
        }

    def _order(self) -> list[tuple[Family, bool]]:
        rest = [(family, dual) for family in self.space.families for dual in (False, True)]
        order: list[tuple[Family, bool]] = []
        while rest:
            done = {(family.name, dual) for family, dual in order}
            ready = next((side for side in rest if self._needs(*side) <= done), None)
            if ready is None:
                raise IsomergeError(
                    f"the spaces {', '.join(sorted({f.name for f, _ in rest}))} meet in a circle: "
                    "name fewer in spaces="
                )
            order.append(ready)
            rest.remove(ready)
        return order

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """P of every plain and of every dual side at parameters x [parameters]: two flat vectors [elements]."""

        sides = [torch.zeros(self.space.size, dtype=x.dtype, device=x.device) for _ in range(2)]
        scratch, seen = torch.empty_like(x), set()
        for family, dual in self.order:
            for touch in family.touches:
                if touch.dual != dual or touch.free:
                    continue
                touch.leaf.view.of(scratch).copy_(touch.leaf.view.of(x))
                for other in self.on_leaf[touch.leaf]:
                    if other is not touch:
                        multiply(other, other.at.of(scratch), sides[not other.dual])
                touch.add_gram(sides[dual], touch.at.of(scratch), touch.at.of(x))
            if family.name in seen:
                _normalise(family, *sides)
            seen.add(family.name)
        return sides[0], sides[1]

    def raised(self, g: Tensor, metric: tuple[Tensor, Tensor]) -> Tensor:
        """``P G`` of what transforms as gradients do [parameters]; it moves as the weights do."""
        raised = g.clone()
        act(self.space, raised, *metric)
        return raised

    def averaged(self, u: Tensor) -> None:
        """Average over the axes that matrices and complex numbers mix, in place: what is left is invariant."""
        for leaf, touches in self.on_leaf.items():
            axes = tuple(leaf.names.index(t.family.name) for t in touches if t.family.kind != "scale")
            if axes:
                view = leaf.view.of(u)
                view.copy_(view.mean(axes, keepdim=True).expand_as(view))


def _normalise(family: Family, plain: Tensor, dual: Tensor) -> None:
    """Divide both Grams of a family by their invariant size, in place."""

    a, b = family.of(plain), family.of(dual)
    if family.kind == "matrix":
        square = (a * b.mT).sum((-2, -1), keepdim=True) / family.n
        identity = torch.eye(family.n, dtype=a.dtype, device=a.device).expand_as(a)
    elif family.kind == "complex":
        square = (a * b).sum(-1, keepdim=True)
        identity = torch.tensor([1.0, 0.0], dtype=a.dtype, device=a.device).expand_as(a)
    else:
        square, identity = a * b, torch.ones_like(a)
    alive = square > torch.finfo(a.dtype).tiny
    scale = torch.where(alive, square, torch.ones_like(square)).rsqrt()
    a.copy_(torch.where(alive, a * scale, identity))
    b.copy_(torch.where(alive, b * scale, identity))
