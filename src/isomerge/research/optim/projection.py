"""The orthogonal projection off the vertical space, by preconditioned conjugate gradients on its normal equations.

``min_xi |D - V xi|`` has the normal equations ``V^T V xi = V^T D``. For one space they are a Sylvester equation,
``xi A + B xi = C`` with the Grams A of the plain and B of the dual side, solved in the eigenbases of A and B;
numbers are the diagonal case. Where spaces meet in one tensor the equations couple: these single solutions are then
the preconditioner of conjugate gradients for least squares (CGLS; Bjorck, Numerical Methods for Least Squares
Problems, 1996, Algorithm 7.4.1), which keep the remainder ``D - V xi`` itself. Shifts of biases are eliminated
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.research.optim.additions import AdditionSolver
from isomerge.research.optim.families import Family
from isomerge.research.optim.vertical import Point


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
            plain, dual = point.grams(family)
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
