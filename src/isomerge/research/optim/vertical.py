"""The vertical space: the directions in which all parameters move along the orbit, and its adjoint.

The tangent of the orbit at X is the image of ``V``: for elements ``xi`` of the Lie algebras, a plain leaf moves by
``xi X``, a dual one by ``-xi^T X``; scales are the same with numbers, complex numbers ``a + ib`` move a plain leaf
by ``a X + b J X`` and a dual one by ``-a X + b J X`` (J is the quarter turn). Where several spaces act on one
tensor their motions add up. An update D is horizontal when ``V^T D = 0``: for one space alone
``sum D X^T - sum X D^T = 0``, plain leaves first (docs/lab/quotient-optimisation.md).

Behind the elements of the Lie algebras stands what may be added (`isomerge.research.optim.additions`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.research.optim.additions import Additions
from isomerge.research.optim.binding import Binding
from isomerge.research.optim.families import Family, Shifted, Touch, families, total
from isomerge.research.optim.layout import Layout
from isomerge.research.optim.norm_stacks import NormsAt


class VerticalSpace:
    """Families, shifts and layout of one module; nothing here depends on the values of the parameters.

    Args:
        binding: the recognised module.
    """

    def __init__(self, binding: Binding) -> None:
        self.layout = Layout(binding)
        self.families: list[Family]
        self.shifts: list[Shifted]
        self.families, self.shifts, self.size = families(binding, self.layout)
        self.additions = Additions(binding.spec, binding.free, self.layout.places)
        touches = [touch for family in self.families for touch in family.touches]
        self.first = {next(t for t in touches if t.leaf is leaf) for leaf in {t.leaf for t in touches}}
        """The first touch of every leaf: it writes what the others add to."""
        self.untouched = [leaf.view for leaf in self.layout.leaves if all(t.leaf is not leaf for t in touches)]

    @property
    def dimension(self) -> int:
        """The length of a flat vector of directions: elements, then what may be added."""
        return self.size + self.additions.size

    def at(self, x: Tensor) -> Point:
        """The vertical space at a flat vector of parameters."""
        return Point(self, x)


class Point:
    """The vertical space at one point.

    Args:
        space: of the module.
        x: the parameters, flat, float32 or float64; not changed, and not to be changed.
    """

    def __init__(self, space: VerticalSpace, x: Tensor) -> None:
        self.space, self.x = space, x
        self._leaves: list[tuple[Touch, Tensor, Tensor | None]] = []
        for family in space.families:
            for touch in family.touches:
                leaf = touch.at.of(x)
                self._leaves.append((touch, leaf, quarter_turn(touch, leaf) if family.kind == "complex" else None))
        self.carriers = [(shift, carrier(shift, x)) for shift in space.shifts]
        """The shifts with their matrices W [layer, outputs, bias]; None where nothing is carried."""
        self.norms = NormsAt(x)

    def push(self, xi: Tensor) -> Tensor:
        """``V xi``: the flat vector [parameters] in which a direction [dimension] moves them."""

        moved = torch.empty_like(self.x)
        for view in self.space.untouched:
            view.of(moved).zero_()
        for touch, leaf, turned in self._leaves:
            out, c = touch.at.of(moved), touch.coefficient.of(xi)
            if touch.dual:
                c = -c.mT if touch.family.kind == "matrix" else -c
            if touch in self.space.first:
                (torch.matmul if touch.family.kind == "matrix" else torch.mul)(c, leaf, out=out)
            elif touch.family.kind == "matrix":
                out += c @ leaf
            else:
                out.addcmul_(leaf, c)
            if turned is not None:
                out.addcmul_(turned, touch.imaginary.of(xi))
        for shift, w in self.carriers:
            d = shift.of(xi)
            shift.bias.of(moved).add_(d)
            if w is not None and shift.into is not None:
                out = shift.into.of(moved)
                out -= (w @ d.flatten(1).unsqueeze(-1)).view(out.shape)
        self.space.additions.push(self.norms, xi[self.space.size :], moved)
        return moved

    def pull(self, d: Tensor) -> Tensor:
        """``V^T D``: the flat vector [dimension] that is zero for horizontal updates [parameters]."""

        met = torch.zeros(self.space.dimension, dtype=d.dtype, device=d.device)
        for touch, leaf, turned in self._leaves:
            change, out = touch.at.of(d), touch.coefficient.of(met)
            if touch.family.kind == "matrix":
                gram = leaf @ change.mT if touch.dual else change @ leaf.mT
                out.add_(total(gram, touch.summed), alpha=-1 if touch.dual else 1)
                continue
            out.add_(total(leaf * change, touch.summed), alpha=-1 if touch.dual else 1)
            if turned is not None:
                touch.imaginary.of(met).add_(total(turned * change, touch.summed))
        for shift, w in self.carriers:
            out = shift.of(met)
            out += shift.bias.of(d)
            if w is not None and shift.into is not None:
                out -= (w.mT @ shift.into.of(d).flatten(1).unsqueeze(-1)).view(out.shape)
        self.space.additions.pull(self.norms, d, met[self.space.size :])
        return met

    def grams(self, family: Family) -> tuple[Tensor, Tensor]:
        """The self-Grams of the plain and of the dual side of a family, without biases that a shift moves.

        Matrices: ``sum X X^T``, ``[element, *batch, n, n]``. Numbers: the sums of squares along their axis, of the
        family's shape; of complex numbers the squared norms, in the place of the real part.
        """

        sides = [torch.zeros(self.space.size, dtype=self.x.dtype, device=self.x.device) for _ in range(2)]
        for touch, leaf, _ in self._leaves:
            if touch.family is family and not touch.free:
                touch.add_gram(sides[touch.dual], leaf, leaf)
        return family.of(sides[0]), family.of(sides[1])


def quarter_turn(touch: Touch, x: Tensor) -> Tensor:
    """``J x``: pairs (a, b) become (-b, a)."""

    a, b = x.unbind(touch.axis)
    return torch.stack([-b, a], touch.axis)


def carrier(shift: Shifted, x: Tensor) -> Tensor | None:
    """W [layer, outputs, bias] of a shift, summed over heads that share a bias; None where nothing is carried."""
    if shift.via is None or shift.into is None:
        return None
    outputs, inputs = len(shift.into.size) - 1, len(shift.shape) - 1
    w = shift.via.of(x)
    w = w.sum(tuple(range(1 + outputs + inputs, w.ndim))) if w.ndim > 1 + outputs + inputs else w
    return w.flatten(1, outputs).flatten(2)
