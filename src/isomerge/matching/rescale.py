"""Rescaling: the exact one-dimensional optima that are left when rotations and permutations are fixed.

``min_a |a x1 - x2|^2 + |y1 / a - y2|^2`` over a != 0 is a quartic (seed paper, Eq. 11 and 12); for a RoPE pair the
factor is complex and one real search remains (a phase follows from its modulus).
"""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.matching.certified import certified_scale

# Newton steps of the quartic. Eight reach rounding; a triple root (both minima meeting) shrinks by 2/3 a step, and
# the value is flat there to the fourth order.
NEWTON = 60
# Turns that polish a factor once its value is certified.
POLISH = 4
# Squares at or below this are zero: nothing can be balanced against them.
TINY = 1e-300


def quartic_scale(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor, *, signed: bool = True) -> Tensor:
    """The best real factor, from four traces (any shape, float64).

    With ``a = +-(beta / alpha)^(1/4) e^s`` the cost of Eq. 11 is, up to a factor, ``cosh 2s - sigma cosh s - delta
    sinh s``. Reflecting s leaves all but the last term, so a global minimiser has the sign of delta; on that side
    stationarity, ``4 y - sigma y / sqrt(1 + y^2) = |delta|`` with ``y = |sinh s|``, has one root (the left side is
    convex or concave, and zero at zero), which `positive_root` finds. Likewise the better sign of a is sigma's.

    Args:
        alpha: |x1|^2 of the moved model's plain side.
        beta: |y1|^2 of its dual side.
        c_plus: <x1, x2> with the anchor's plain side.
        c_minus: <y1, y2> with the anchor's dual side.
        signed: whether negative factors are symmetries as well.

    Returns:
        The global minimiser a of Eq. 11, of the shape of the traces. One where a side is zero, and where one is
        as good. Where two minima tie, the larger modulus (delta = 0) or the positive sign (sigma = 0).
    """

    ones = torch.ones_like(alpha)
    alive = (alpha > TINY) & (beta > TINY)
    a, b = torch.where(alive, alpha, ones), torch.where(alive, beta, ones)
    unit, _ = _units(a, b)
    sigma, delta = _reduced(a, b, c_plus, c_minus)
    sign = torch.where(sigma < 0, -ones, ones) if signed else ones
    y = positive_root(sigma * sign, delta.abs())
    stretch = y + (1 + y * y).sqrt()
    factor = sign * unit * torch.where(delta * sign < 0, stretch.reciprocal(), stretch)
    better = _cost(factor, a, b, c_plus, c_minus) < _cost(ones, a, b, c_plus, c_minus)
    return torch.where(alive & better, factor, ones)


def quartic_value(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor, *, signed: bool = True) -> Tensor:
    """The value of Eq. 11 at `quartic_scale`'s factor, without the anchor's squares; same arguments and shape.

    Cheaper than the factor: made for all pairs of neurons at once.
    """

    alive = ((alpha > TINY) & (beta > TINY)).expand_as(c_plus)
    a, b = torch.where(alive, alpha, 1.0), torch.where(alive, beta, 1.0)
    sigma, delta = _reduced(a, b, c_plus, c_minus)
    sigma, delta = sigma.abs() if signed else sigma, delta.abs()
    y = positive_root(sigma, delta)
    best = 2 * _units(a, b)[1] * (1 + 2 * y * y - sigma * (1 + y * y).sqrt() - delta * y)
    return torch.where(alive, best, alpha + beta - 2 * (c_plus + c_minus))


def _reduced(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor) -> tuple[Tensor, Tensor]:
    """sigma and delta: the overlaps' sum and difference after balancing both sides to norm one."""
    unit, size = _units(alpha, beta)
    up, down = c_plus * (unit / size), c_minus / (unit * size)
    return up + down, up - down


def _units(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The factor (beta / alpha)^(1/4) that balances both sides, and their norm's square then."""
    return beta.pow(0.25) / alpha.pow(0.25), alpha.sqrt() * beta.sqrt()


def positive_root(sigma: Tensor, delta: Tensor) -> Tensor:
    """The largest y >= 0 with ``4 y - sigma y / sqrt(1 + y^2) = delta``, for delta >= 0 (any shape, float64).

    For sigma >= 0 the left side is convex and Newton falls monotonically from above the root; for sigma < 0 it is
    concave and Newton rises from below.
    """

    slack = (4 - sigma).clamp_min(1e-300)
    above = torch.where(sigma < 4, torch.minimum((sigma + delta) / 4, delta / slack), (sigma + delta) / 4)
    y = torch.where(sigma < 0, delta / (4 - sigma), above)
    for _ in range(NEWTON):
        root = (1 + y * y).sqrt()
        slope = 4 - sigma / (root * root * root)
        step = (4 * y - sigma * y / root - delta) / torch.where(slope > 1e-30, slope, torch.inf)
        y = (y - step).clamp_min(0)
        if bool((step.abs() <= 4e-16 * y).all()):
            break
    return y


def _cost(a: Tensor, alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor) -> Tensor:
    """Eq. 11 without the anchor's squares."""
    return alpha * a**2 - 2 * c_plus * a + beta / a**2 - 2 * c_minus / a


def complex_scale(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor) -> Tensor:
    """The best complex factor of a RoPE pair, z [..., 2]; see `complex_optimum`."""
    return complex_optimum(alpha, beta, c_plus, c_minus)[0]


def complex_optimum(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best complex factor of a RoPE pair, certified: ``min_z |z q1 - q2|^2 + |k1 / conj(z) - k2|^2``.

    With z = e^s e^(i t), the phase is that of ``e^s c+ + e^-s c-`` and s is left to `certified_scale`, then
    polished in turn with the phase (each turn is a quartic). Grouped queries sum alpha and c+ over their heads.

    Args:
        alpha, beta: |q1|^2 and |k1|^2 [...], float64.
        c_plus, c_minus: the overlaps <q1, q2> and <k1, k2> as complex numbers [..., 2].

    Returns:
        z [..., 2] (one where a side is zero), its value without the anchor's squares [...], and the gap [...]: no
        factor is better than value - gap.
    """

    alive = (alpha > TINY) & (beta > TINY)
    shape, keep = alive.shape, alive.reshape(-1)
    a, b = (t.reshape(-1)[keep] for t in (alpha, beta))
    plus, minus = (t.expand(*shape, 2).reshape(-1, 2)[keep] for t in (c_plus, c_minus))
    z = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(keep.numel(), 1)
    value = (alpha + beta - 2 * (c_plus + c_minus)[..., 0]).reshape(-1).double()
    gap = torch.zeros_like(value)
    if bool(keep.any()):
        s, first, gap[keep] = certified_scale(a, b, plus, minus, lambda c: c.norm(dim=-1))
        for _ in range(POLISH):
            turn = _phase(s.exp()[:, None] * plus + (-s).exp()[:, None] * minus)
            s = quartic_scale(a, b, (turn * plus).sum(-1), (turn * minus).sum(-1)).abs().log()
        overlap = s.exp()[:, None] * plus + (-s).exp()[:, None] * minus
        z[keep] = _phase(overlap) * s.exp()[:, None]
        last = a * (2 * s).exp() + b * (-2 * s).exp() - 2 * overlap.norm(dim=-1)
        value[keep] = last
        gap[keep] = (gap[keep] + last - first).clamp_min(0)
    return z.reshape(*shape, 2), value.reshape(shape), gap.reshape(shape)


def _phase(overlap: Tensor) -> Tensor:
    """Complex numbers [k, 2] brought to modulus one; one for zero."""

    size = overlap.norm(dim=-1, keepdim=True)
    identity = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return torch.where(size > TINY, overlap / size.clamp_min(TINY), identity)
