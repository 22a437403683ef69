"""Rescaling: the exact one-dimensional optima that are left when rotations and permutations are fixed.

``min_a |a x1 - x2|^2 + |y1 / a - y2|^2`` over a != 0 is a quartic (seed paper, Eq. 11 and 12); for a RoPE pair the
factor is complex and one real search remains (a phase follows from its modulus).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def quartic_scale(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor, *, signed: bool = True) -> Tensor:
    """The best real factor, from four traces (any shape, float64).

    Args:
        alpha: |x1|^2 of the moved model's plain side.
        beta: |y1|^2 of its dual side.
        c_plus: <x1, x2> with the anchor's plain side.
        c_minus: <y1, y2> with the anchor's dual side.
        signed: whether negative factors are symmetries as well.

    Returns:
        The global minimiser a: every real root of ``alpha a^4 - c+ a^3 + c- a - beta`` is compared by its value
        and polished by Newton steps. One where a side is zero.
    """
    import torch

    ones = torch.ones_like(alpha)
    alive = (alpha > 0) & (beta > 0)
    lead = torch.where(alive, alpha, ones)
    zero = torch.zeros_like(alpha)
    # the companion matrix of the monic quartic
    terms = torch.stack([-c_plus / lead, zero, c_minus / lead, -beta / lead], -1)
    companion = torch.zeros(*alpha.shape, 4, 4, dtype=torch.float64)
    companion[..., 0, :] = -terms
    companion[..., 1:, :3] += torch.eye(3, dtype=torch.float64)
    roots = torch.linalg.eigvals(companion)
    real = roots.real
    for _ in range(3):
        value = ((lead[..., None] * real - c_plus[..., None]) * real**2 + c_minus[..., None]) * real - beta[
            ..., None
        ]
        slope = 4 * lead[..., None] * real**3 - 3 * c_plus[..., None] * real**2 + c_minus[..., None]
        step = torch.where(slope.abs() > 1e-300, value / slope, torch.zeros_like(value))
        refined = real - step
        real = torch.where(
            _cost(refined, lead, beta, c_plus, c_minus) <= _cost(real, lead, beta, c_plus, c_minus), refined, real
        )
    cost = _cost(real, lead, beta, c_plus, c_minus)
    if not signed:
        cost = torch.where(real > 0, cost, torch.inf)
    best = real.gather(-1, cost.argmin(-1, keepdim=True)).squeeze(-1)
    stay = _cost(ones[..., None], lead, beta, c_plus, c_minus).squeeze(-1)
    return torch.where(alive & (cost.amin(-1) < stay), best, ones)


def _cost(a: Tensor, alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor) -> Tensor:
    """Eq. 11 without its constant, for candidates [..., k]; infinite at zero."""
    import torch

    safe = torch.where(a == 0, torch.ones_like(a), a)
    value = (
        alpha[..., None] * safe**2
        - 2 * c_plus[..., None] * safe
        + beta[..., None] / safe**2
        - 2 * c_minus[..., None] / safe
    )
    return torch.where(a == 0, torch.inf, value)


def complex_scale(alpha: Tensor, beta: Tensor, c_plus: Tensor, c_minus: Tensor) -> Tensor:
    """The best complex factor of a RoPE pair: ``min_z |z q1 - q2|^2 + |k1 / conj(z) - k2|^2``.

    With z = e^s e^(i t), the phase is that of ``e^s c+ + e^-s c-`` and s minimises
    ``alpha e^2s + beta e^-2s - 2 |e^s c+ + e^-s c-|``: a grid over an interval that contains every minimiser,
    then golden sections around the best points.

    Args:
        alpha, beta: |q1|^2 and |k1|^2 [...], float64.
        c_plus, c_minus: the overlaps <q1, q2> and <k1, k2> as complex numbers [..., 2].

    Returns:
        z [..., 2].
    """
    import torch

    tiny = 1e-300
    alive = (alpha > tiny) & (beta > tiny)
    a = torch.where(alive, alpha, torch.ones_like(alpha))
    b = torch.where(alive, beta, torch.ones_like(beta))

    def cost(s: Tensor) -> Tensor:
        up, down = s.exp(), (-s).exp()
        overlap = up[..., None] * c_plus[..., None, :] + down[..., None] * c_minus[..., None, :]
        return a[..., None] * up**2 + b[..., None] * down**2 - 2 * overlap.norm(dim=-1)

    # Where s is far out, the square dominates: |overlap| <= (|c+| + |c-|) e^|s|
    reach = (c_plus.norm(dim=-1) + c_minus.norm(dim=-1) + a + b) / torch.minimum(a, b)
    half = reach.clamp(2, 1e12).log() + 1
    grid = torch.linspace(-1, 1, 257, dtype=torch.float64) * half[..., None]
    order = cost(grid).argsort(-1)[..., :3]
    step = half[..., None] / 128
    low, high = grid.gather(-1, order) - step, grid.gather(-1, order) + step
    golden = (5**0.5 - 1) / 2
    for _ in range(80):
        left, right = high - golden * (high - low), low + golden * (high - low)
        smaller = cost(left) < cost(right)
        low, high = torch.where(smaller, low, left), torch.where(smaller, right, high)
    ends = (low + high) / 2
    s = ends.gather(-1, cost(ends).argmin(-1, keepdim=True)).squeeze(-1)
    s = torch.where(alive, s, torch.zeros_like(s))
    overlap = s.exp()[..., None] * c_plus + (-s).exp()[..., None] * c_minus
    size = overlap.norm(dim=-1, keepdim=True)
    phase = torch.where(size > tiny, overlap / size.clamp_min(tiny), torch.tensor([1.0, 0.0], dtype=torch.float64))
    return phase * s.exp()[..., None]
