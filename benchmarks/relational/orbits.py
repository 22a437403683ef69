"""How far an optimiser moves along the orbit of a model, where nothing can be learned.

A head's query and key (and value and output) map may be changed by any invertible A without any effect:
``(P, M) -> (A P, A^-T M)``. Its directions ``(xi P, -xi^T M)`` are *vertical*. Gradients have no vertical part, so
gradient descent with small steps keeps ``P P^T - M M^T``, the *imbalance* (Kunin et al., ICLR 2021); Adam, which
divides every number by its own size, does not. The pairs (P, M) are read off the spec, so this holds for any
architecture that has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isomerge.checkpoint.in_memory import in_memory
from isomerge.matching.gram import along
from isomerge.matching.local import unit_keys
from isomerge.models.recognised import recognise
from isomerge.symmetry.units import plan_units

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pair = tuple[Tensor, Tensor]
"""A map that A acts on and its dual: float64 [*batch, n, others] each."""


def vertical(at: Pair, move: Pair) -> Pair:
    """The vertical part of a move: the nearest direction that leaves every function of the pair alone.

    ``(xi P, -xi^T M)`` where ``M M^T xi + xi P P^T = D_P P^T - M D_M^T``, a Sylvester equation that eigenvectors
    of the two Grams solve.

    Args:
        at: (P, M), float64 [*batch, n, p] and [*batch, n, m], of full row rank.
        move: (D_P, D_M) of the same shapes.
    """
    plus, minus = at
    a, u = torch.linalg.eigh(plus @ plus.mT)
    b, v = torch.linalg.eigh(minus @ minus.mT)
    right = move[0] @ plus.mT - minus @ move[1].mT
    xi = v @ ((v.mT @ right @ u) / (b.unsqueeze(-1) + a.unsqueeze(-2))) @ u.mT
    return xi @ plus, -xi.mT @ minus


def imbalance(at: Pair) -> Tensor:
    """``P P^T - M M^T``, [*batch, n, n]; zero in the balanced gauge."""
    return at[0] @ at[0].mT - at[1] @ at[1].mT


class Orbit:
    """The pairs of all heads of a live model, read anew on every call of `pairs`.

    Args:
        model: of an architecture that isomerge knows; its parameters are read, never written.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = recognise(in_memory(model.state_dict(), model.config))
        whole = self.model.spec
        self.spec = whole.restrict([n for n, space in whole.spaces.items() if space.group_name == "GL"])
        self.units = [unit for unit in plan_units(self.spec, self.model.blocks) if unit.elements]

    def pairs(self) -> dict[str, Pair]:
        """Element key -> (P, M) as they are now."""
        return dict(self._pairs())

    def _pairs(self) -> Iterator[tuple[str, Pair]]:
        for unit in self.units:
            tensors = {block: self.model.assemble(block, torch.float64) for block in unit.blocks}
            for name, key in unit_keys(self.spec, tensors).items():
                sides: dict[bool, list[Tensor]] = {False: [], True: []}
                for x, atom in along(self.spec, name, tensors):
                    sides[atom.dual].append(x)
                yield key, (torch.cat(sides[False], -1), torch.cat(sides[True], -1))


class Factors:
    """The pairs of a relational model, whose factorised forms are all that has a gauge; none where its forms are
    full.

    Args:
        model: read on every call of `pairs`, never written.
    """

    def __init__(self, model: nn.Module) -> None:
        from isomerge.relational.head_circuits import FactorCircuits

        self.circuits = {n: m for n, m in model.named_modules() if isinstance(m, FactorCircuits)}

    def pairs(self) -> dict[str, Pair]:
        """Name -> (P, M) as they are now; query heads that share a key stand side by side."""
        found: dict[str, Pair] = {}
        for name, circuits in self.circuits.items():
            found[f"{name}.scores"] = _side(circuits.query), _side(circuits.key[:, None])
            found[f"{name}.outputs"] = _side(circuits.value[:, None]), _side(circuits.output)
        return found


def _side(factor: Tensor) -> Tensor:
    """Float64 [groups, rank, shared * anchors] of [groups, shared, rank, anchors]."""
    return factor.detach().double().movedim(1, 2).flatten(2)


@dataclass
class Wander:
    """What a run's updates did along the orbit, from some of its steps."""

    orbit: Orbit | Factors
    every: int
    """Of so many steps, one is measured and stands for all."""

    def __post_init__(self) -> None:
        self.start = self.before = self.orbit.pairs()
        self.vertical_square = self.square = self.walked = 0.0

    def stepping(self, step: int) -> bool:
        """To be called before a step, counted from 0; whether `stepped` is to be called after it."""
        if step % self.every:
            return False
        self.before = self.orbit.pairs()
        return True

    def stepped(self) -> None:
        """Add the step that was just made; one that is not finite is left out."""
        square = total = 0.0
        for key, now in self.orbit.pairs().items():
            at = self.before[key]
            move = (now[0] - at[0], now[1] - at[1])
            if not all(bool(torch.isfinite(x).all()) for x in (*move, *at)):
                return
            square += sum(float(x.square().sum()) for x in vertical(at, move))
            total += sum(float(x.square().sum()) for x in move)
        self.vertical_square += square
        self.square += total
        self.walked += self.every * square**0.5

    def report(self) -> dict[str, float] | None:
        """In JSON; None where the weights are not finite.

        ``vertical``: the norm of the vertical part of the updates, as a share of the norm of the updates (root
        mean square); ``walked``: the length of the way along orbits, as a share of the norm of the weights at the
        end; ``imbalance_start``, ``imbalance``: the norm of ``P P^T - M M^T`` as a share of that of ``P P^T + M
        M^T``; ``drift``: how far it moved, as a share of the same at the end.
        """
        end = self.orbit.pairs()
        if not all(bool(torch.isfinite(x).all()) for pair in end.values() for x in pair) or not self.square:
            return None
        return {
            "vertical": (self.vertical_square / self.square) ** 0.5,
            "walked": self.walked / _norm(x for pair in end.values() for x in pair),
            "imbalance_start": _norm(map(imbalance, self.start.values())) / _size(self.start),
            "imbalance": _norm(map(imbalance, end.values())) / _size(end),
            "drift": _norm(imbalance(end[k]) - imbalance(self.start[k]) for k in end) / _size(end),
        }


def _norm(tensors: Iterator[Tensor]) -> float:
    return sum(float(x.square().sum()) for x in tensors) ** 0.5


def _size(pairs: dict[str, Pair]) -> float:
    return _norm(p @ p.mT + m @ m.mT for p, m in pairs.values())
