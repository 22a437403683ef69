"""The vertical space: the directions in which all parameters move along the orbit, its adjoint, and the orthogonal
projection off it.

The tangent of the orbit at X is the image of ``V``: for elements ``xi`` of the Lie algebras, a plain leaf moves by
``xi X``, a dual one by ``-xi^T X``; scales are the same with numbers, complex numbers ``a + ib`` move a plain leaf
by ``a X + b J X`` and a dual one by ``-a X + b J X`` (J is the quarter turn). Where several spaces act on one
tensor their motions add up. An update D is horizontal when ``V^T D = 0``: for one space alone ``sum D X^T - sum X
D^T = 0``, plain leaves first (docs/lab/quotient-optimisation.md).

Behind the elements of the Lie algebras stands what may be added (`isomerge.research.optim.additions`).

``min_xi |D - V xi|`` has the normal equations ``V^T V xi = V^T D``. For one space they are a Sylvester equation,
``xi A + B xi = C`` with the Grams A of the plain and B of the dual side, solved in the eigenbases of A and B;
numbers are the diagonal case. Where spaces meet in one tensor the equations couple: these single solutions are
then the preconditioner of conjugate gradients for least squares (CGLS; Bjorck, Numerical Methods for Least Squares
Problems, 1996, Algorithm 7.4.1), which keep the remainder ``D - V xi`` itself. Shifts of biases are eliminated
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.research.optim.additions import Additions, AdditionSolver, NormsAt
from isomerge.research.optim.binding import Binding
from isomerge.research.optim.layout import Family, Layout, Shifted, Touch, families, total


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
            shift.carry(moved, w, d, -1)
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


class Preconditioner:
    """The pseudo-inverse of every space's own normal equations: directions that move nothing stay at zero.

    Args:
        point: where it is made. It serves points nearby as well: what is solved is always exact.
    """

    def __init__(self, point: Point) -> None:
        self.size = point.space.size
        self.additions = AdditionSolver(point.space.additions, point.norms)
        self.numbers = torch.ones(self.size, dtype=point.x.dtype, device=point.x.device)
        self.matrices: list[tuple[Family, Tensor, Tensor, Tensor]] = []
        for family in point.space.families:
            plain, dual = family.grams(point.x, free=False)
            if family.kind == "matrix":
                (a, u), (b, w) = torch.linalg.eigh(plain), torch.linalg.eigh(dual)
                self.matrices.append((family, w, u, _inverse(b.unsqueeze(-1) + a.unsqueeze(-2))))
            elif family.kind == "complex":
                both = _inverse(plain + dual)[..., :1]
                family.of(self.numbers).copy_(both.expand(family.shape))
            else:
                family.of(self.numbers).copy_(_inverse(plain + dual))
        for shift in point.space.shifts:  # these are solved exactly, see `ShiftProjection`
            shift.of(self.numbers).zero_()

    def solve(self, c: Tensor) -> Tensor:
        """Every space's own solution for right-hand sides [dimension]."""
        solution = torch.cat([c[: self.size] * self.numbers, self.additions.solve(c[self.size :])])
        for family, w, u, inverse in self.matrices:
            family.of(solution).copy_(w @ ((w.mT @ family.of(c) @ u) * inverse) @ u.mT)
        return solution


class ShiftProjection:
    """The orthogonal projection off the shifts' directions ``(d, -W d)`` of biases, exactly.

    What is left of a pair (bias, into) is ``(W^T t, t)`` with ``(1 + W W^T) t = into + W bias``; a bias that
    softmax drops does not move at all.

    Args:
        point: where the update is made.
    """

    def __init__(self, point: Point) -> None:
        self.parts = []
        for shift, w in point.carriers:
            root = None
            if w is not None:
                eye = torch.eye(w.shape[-2], dtype=w.dtype, device=w.device)
                root = torch.linalg.cholesky(eye + w @ w.mT)
            self.parts.append((shift, w, root))

    def apply(self, d: Tensor) -> None:
        """Project a flat vector of parameters, in place."""
        for shift, w, root in self.parts:
            bias = shift.bias.of(d)
            if w is None or root is None or shift.into is None:
                bias.zero_()
                continue
            into = shift.into.of(d)
            right = into.flatten(1).unsqueeze(-1) + w @ bias.flatten(1).unsqueeze(-1)
            t = torch.cholesky_solve(right, root)
            into.copy_(t.view(into.shape))
            bias.copy_((w.mT @ t).view(bias.shape))


def _inverse(sums: Tensor) -> Tensor:
    """Reciprocals; zero where a sum is mere rounding beside the largest: these are sums of squares."""
    floor = sums.amax((-2, -1), keepdim=True) * (sums.shape[-1] * torch.finfo(sums.dtype).eps)
    return torch.where(sums > floor, 1 / sums, torch.zeros_like(sums))


@dataclass(frozen=True)
class Projected:
    """The outcome of a projection."""

    horizontal: Tensor
    """``D - V xi`` [parameters]."""
    xi: Tensor
    """The direction [dimension] whose motion was taken off, without shifts; one of those that move alike."""
    iterations: int
    left: float
    """The vertical part that may be left, as a share of the norm of D (in the norm of the preconditioner)."""


def project(
    point: Point,
    preconditioner: Preconditioner,
    d: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float,
    limit: int = 100,
) -> Projected:
    """Project an update off the vertical space.

    Args:
        point: where the update is made.
        preconditioner: of this point, or of one nearby.
        d: the update [parameters], of the point's dtype.
        start: a direction from which to begin, such as the last step's.
        tolerance: on the vertical part that is left, as a share of the norm of ``d``.
        limit: on the number of iterations.
    """
    shifts = ShiftProjection(point)
    xi = start if start is not None else d.new_zeros(point.space.dimension)
    r = d - point.push(xi) if start is not None else d.clone()
    shifts.apply(r)
    bound = (tolerance * d.norm()) ** 2
    s = point.pull(r)
    p = z = preconditioner.solve(s)
    rho, done = s.dot(z), 0
    while done < limit and rho > bound:
        q = point.push(p)
        shifts.apply(q)
        size = q.dot(q)
        if not size > 0:
            break
        done += 1
        step = float(rho / size)
        xi = xi.add(p, alpha=step)
        r.sub_(q, alpha=step)
        s = point.pull(r)
        z = preconditioner.solve(s)
        before, rho = rho, s.dot(z)
        p = z.add(p, alpha=float(rho / before))
    left = float((rho.clamp_min(0) / d.dot(d).clamp_min(torch.finfo(d.dtype).tiny)).sqrt())
    return Projected(r, xi, done, left)
