"""The compact element that brings one axis to its canonical position: eigenbases, phases, signs and orders.

Balancing has removed all that is not compact (`isomerge.matching.balance`). What is left of every group is decided
by moments of the weights along its axis, which all other groups leave alone or which are fixed before: second
moments give eigenbases and orders, third moments give signs and phases (their squares would not know them). Each
choice has a gap; where it is small, rounding decides, and the representative may move by what the choice weighs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.groups import OrthogonalFixingOnes
from isomerge.symmetry.language.spec import Space

ROTATED = ("O", "OFixingOnes")
"""Groups whose axis has a basis to choose."""
SIGNED = (*ROTATED, "Sign", "SignedPerm")
PAIRS = ("Complex", "Turn")
"""Groups of phases."""
ORIENTED = (*SIGNED, *PAIRS)
"""Groups that third moments decide on."""
CHOSEN = (*ORIENTED, "Perm")
"""Groups that leave something to choose once a unit is balanced."""


@dataclass(frozen=True)
class Gap:
    """How clear a choice was."""

    element: str
    kind: str
    """``eigenvalue``, ``order``, ``sign`` or ``phase``."""
    value: float
    """The smallest difference that decided, as a share of what it is a difference of; 0: rounding decides."""
    weight: float
    """The squared norm of the weights that the other choice would move, times four: what a wrong sign does to
    them."""


def second_moment(space: Space, x: Tensor) -> Tensor:
    """What bases and orders are read from: the Gram [*batch, n, n] of a rotated axis, else its diagonal [*batch,
    n]."""
    return x @ x.mT if space.group.compact in ROTATED else x.square().sum(-1)


def basis(space: Space, second: Tensor) -> tuple[Tensor | None, Tensor]:
    """The rotation [*batch, n, n] to the eigenbasis of a second moment, largest first, signs open, and the
    eigenvalues (both across the ones where these are kept); of axes that are not rotated, None and the moment."""

    if space.group.compact not in ROTATED:
        return None, second
    if space.group.compact == "OFixingOnes":
        plane = OrthogonalFixingOnes().complement(second.shape[-1])
        second = plane.mT @ second @ plane
    values, vectors = torch.linalg.eigh(second)
    return vectors.mT.flip(-2), values.flip(-1)


def coordinates(space: Space, turn: Tensor | None, x: Tensor) -> Tensor:
    """The entries along an axis [*batch, n, others] in its eigenbasis; ones are left out where they are kept."""
    if turn is None:
        return x
    if space.group.compact == "OFixingOnes":
        x = OrthogonalFixingOnes().complement(x.shape[-2]).mT @ x
    return turn @ x


def third_moment(space: Space, y: Tensor) -> tuple[Tensor, Tensor]:
    """What signs [*batch, n] and phases [*batch, 2] are read from, and the size that it is measured against.

    ``sum y^3``; of pairs ``sum z |z|^2``, which turns as they do.
    """
    if space.group.compact in PAIRS:
        size = y.square().sum(-2)
        return (y * size.unsqueeze(-2)).sum(-1), size.pow(1.5).sum(-1, keepdim=True)
    return y.pow(3).sum(-1), y.abs().pow(3).sum(-1)


def element(
    key: str, space: Space, turn: Tensor | None, second: Tensor, third: Tensor | None, size: Tensor | None
) -> tuple[Tensor, list[Gap]]:
    """The element of a space from its moments, and how clear it was.

    Args:
        key: its name in the report.
        space: one whose compact group is rotated, sorted, signed or a phase.
        turn, second: see `basis`; of axes that are not rotated, None and the diagonal.
        third, size: see `third_moment`, in the eigenbasis; None where nothing is there to read them from: signs are
            open.
    """

    kind = space.group.compact
    third = torch.zeros_like(second) if third is None else third
    size = torch.zeros_like(second) if size is None else size
    if kind in PAIRS:
        return _phase(key, third, size)
    gaps: list[Gap] = []
    sign = torch.where(third < 0, -1.0, 1.0).double()
    if kind in SIGNED:
        gaps.append(_least(key, "sign", third.abs() / size.clamp_min(1e-300), 4 * second))
    if turn is not None:
        gaps += _between(key, "eigenvalue", second)
        turn = sign.unsqueeze(-1) * turn
        if kind == "OFixingOnes":
            plane = OrthogonalFixingOnes().complement(turn.shape[-1] + 1)
            turn = plane @ turn @ plane.mT + 1 / len(plane)
        return turn, gaps
    if kind == "Sign":
        return sign, gaps
    order = torch.sort(second, dim=-1, descending=True, stable=True).indices
    gaps += _between(key, "order", second.gather(-1, order))
    return (order if kind == "Perm" else (sign.gather(-1, order) * (order + 1)).long()), gaps


def _phase(key: str, third: Tensor, size: Tensor) -> tuple[Tensor, list[Gap]]:
    """The unit complex number that makes a third moment real and positive."""

    modulus = third.norm(dim=-1, keepdim=True)
    gap = _least(key, "phase", modulus / size.clamp_min(1e-300), 4 * size.pow(2 / 3))
    phase = torch.stack([third[..., 0], -third[..., 1]], -1) / modulus.clamp_min(1e-300)
    still = torch.tensor([1.0, 0.0], dtype=torch.float64).expand_as(phase)
    return torch.where(modulus > 0, phase, still), [gap]


def _between(key: str, kind: str, falling: Tensor) -> list[Gap]:
    """The smallest step of a falling row [*batch, n], as a share of its first entry."""
    if falling.shape[-1] < 2:
        return []
    near = (falling[..., :-1] - falling[..., 1:]) / falling[..., :1].clamp_min(1e-300)
    return [_least(key, kind, near, 2 * (falling[..., :-1] + falling[..., 1:]))]


def _least(key: str, kind: str, gap: Tensor, weight: Tensor) -> Gap:
    """The smallest gap, and what hangs on it."""
    at = int(gap.argmin())
    return Gap(key, kind, float(gap.reshape(-1)[at]), float(weight.reshape(-1)[at]))
