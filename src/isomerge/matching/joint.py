"""Rotation and rescaling together, globally: what the seed paper does one after the other (Eq. 10, then Eq. 12).

``min |a R x1 - x2|^2 + |R y1 / a - y2|^2`` over R in a compact group and a > 0. At a given ``a = e^s`` the best R
is a Procrustes problem whose score is a norm of ``e^s C+ + e^-s C-``, with ``C+ = x2 x1^T`` and ``C- = y2 y1^T``.
The search over s is not convex and the minimiser need not be unique (n = 1, C+ = 2, C- = -2 and squares of one have
two), so it is certified.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.matching.certified import certified_scale
from isomerge.matching.rescale import POLISH, TINY, quartic_scale
from isomerge.symmetry.groups import Group
from isomerge.symmetry.groups.singular import check_finite


@dataclass(frozen=True)
class JointOptimum:
    """The best compact element and factor of every batch entry: the source moves by ``scale * element``."""

    element: Tensor
    """The compact element [*b, ...], in the group's own form."""
    scale: Tensor
    """The factor a > 0 [*b]; one where a side is zero."""
    value: Tensor
    """The squared distance without the anchor's squares [*b]: ``alpha a^2 + beta / a^2 - 2 <g, a C+ + C- / a>``."""
    gap: Tensor
    """Certified [*b]: no element and factor have a value below ``value - gap``, up to the rounding of the score."""


def joint_optimum(
    group: Group, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor, *, tolerance: float = 1e-10
) -> JointOptimum:
    """The global optimum over a compact group and one positive factor; never worse than the paper's two steps.

    Args:
        group: O, Sign or Complex (or GL, which stands for its compact part O): compact groups that hold -1, so
            that the score is a norm and a negative factor brings nothing new.
        alpha, beta: squares of the moved model's plain and dual sides, float64 [*b].
        plus, minus: cross-Grams of both sides, anchor times moved transposed, [*b, n, n].
        tolerance: what the gap may be, relative to the squares and the overlap at the optimum.

    Returns:
        Element, factor, value and certified gap. Where a side is zero the factor is one.

    Raises:
        ValueError: a group without -1, whose score may be negative: the bound does not hold for it.
    """

    if group.name not in ("O", "GL", "Sign", "Complex"):
        raise ValueError(f"group {group.name} does not hold -1: the joint optimum is not certified for it")
    batch, n = alpha.shape, plus.shape[-1]
    alive = ((alpha > TINY) & (beta > TINY)).reshape(-1)
    a, b = alpha.reshape(-1)[alive], beta.reshape(-1)[alive]
    up, down = (c.double().reshape(-1, n, n)[alive] for c in (plus, minus))
    scale = torch.ones(alive.numel(), dtype=torch.float64)
    gap = torch.zeros_like(scale)
    if bool(alive.any()):
        starts = sequential_scale(group, a, b, up, down).log()[:, None]
        s, first, bound = certified_scale(
            a, b, up, down, lambda c: _score(group, c), starts=starts, tolerance=tolerance
        )
        scale[alive], last = _polished(group, s.exp(), a, b, up, down)
        gap[alive] = (bound + last - first).clamp_min(0)
    scale = scale.reshape(batch)
    wide = scale[..., None, None]
    element, score = group.solve(plus.double() * wide + minus.double() / wide)
    value = alpha * scale**2 + beta / scale**2 - 2 * score
    return JointOptimum(element, scale, value, gap.reshape(batch))


def sequential_scale(group: Group, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
    """The modulus [k] of the paper's factor: the rotation of Eq. 10 held, then Eq. 12."""
    g, _ = group.solve(plus + minus)
    return quartic_scale(alpha, beta, group.contract(g, plus), group.contract(g, minus)).abs()


def _polished(
    group: Group, scale: Tensor, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor
) -> tuple[Tensor, Tensor]:
    """Turns of Procrustes and quartic: the value cannot rise, and the factor gains digits. Factor and value [k]."""

    def at(factor: Tensor) -> Tensor:
        score = _score(group, plus * factor[:, None, None] + minus / factor[:, None, None])
        return alpha * factor**2 + beta / factor**2 - 2 * score

    value = at(scale)
    for _ in range(POLISH):
        g, _ = group.solve(plus * scale[:, None, None] + minus / scale[:, None, None])
        trial = quartic_scale(alpha, beta, group.contract(g, plus), group.contract(g, minus)).abs()
        reached = at(trial)
        lower = reached < value
        scale, value = torch.where(lower, trial, scale), torch.where(lower, reached, value)
        if not bool(lower.any()):
            break
    return scale, value


def _score(group: Group, cross: Tensor) -> Tensor:
    """The group's score; for rotations from singular values, as squares would lose half the digits."""

    if group.compact != "O":
        return group.score(cross)
    check_finite(cross)
    return torch.linalg.svdvals(cross).sum(-1)
