"""What few tensors of a module may have added (`isomerge.quotient.optim.additions`).

Their adjoint is what autograd makes of them: it costs more, and is no second text that could differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from isomerge.quotient.optim.norm_stacks import NormsAt, NormStack
from isomerge.quotient.optim.views import View
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import Carried
from isomerge.symmetry.language.spec import Shift, Spec
from isomerge.symmetry.norms import Norm
from isomerge.symmetry.stage import add_shifts, shift_shape
from isomerge.symmetry.unstored_biases import UnstoredBias

Terms = Iterator[tuple[View, Tensor]]
"""Views of a flat vector of parameters, and what is added to each, of its shape."""


class Seldom(ABC):
    """An addition that says what it adds; the rest follows."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""

    @abstractmethod
    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        """What it adds, by what is free; linear in it."""

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        """See `Addition`."""
        for at, change in self._terms(norms, c):
            at.of(out).add_(change)

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        """See `Addition`."""
        with torch.enable_grad():
            c = torch.zeros(self.shape, dtype=d.dtype, device=d.device, requires_grad=True)
            added = list(self._terms(norms, c))
            (met,) = torch.autograd.grad([change for _, change in added], c, [at.of(d) for at, _ in added])
        return met

    def squares(self, norms: NormsAt) -> Tensor:
        """See `Addition`; on average."""
        ones = torch.ones(self.shape, dtype=norms.x.dtype, device=norms.x.device)
        return _square(self._terms(norms, ones)) / prod(self.shape)


@dataclass(frozen=True, eq=False)
class Made(Seldom):
    """What a reader without a bias makes of its norm's bias, where it may be anything."""

    stack: NormStack
    bias: UnstoredBias
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""
        return tuple(1 if k == self.bias.axis else n for k, n in enumerate(self.places[self.bias.reader].size))

    def squares(self, norms: NormsAt) -> Tensor:
        """See `Addition`."""
        return self.bias.rows(self.places[self.bias.reader].of(norms.x)) * norms.along(self.stack).square().sum()

    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        bias, at = self.bias, self.places[self.bias.reader]
        free = torch.where(bias.rows(at.of(norms.x)), c, torch.zeros_like(c))
        yield at, free * norms.along(self.stack)[0].reshape([-1 if k == bias.axis else 1 for k in range(c.ndim)])
        if bias.into is not None and bias.via is not None:
            tensors = {block: self.places[block].of(norms.x) for block in (bias.via, bias.into)}
            yield self.places[bias.into], -(bias.through(free, tensors) * norms.paid(self.stack)[0]).to(c.dtype)


@dataclass(frozen=True, eq=False)
class Traded(Seldom):
    """What a table that is the head as well trades with another."""

    stack: NormStack
    norm: Norm
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""
        return (len(self.norm.trades),)

    def squares(self, norms: NormsAt) -> Tensor:
        """See `Addition`."""
        whole = torch.eye(len(self.norm.trades), dtype=norms.x.dtype, device=norms.x.device)
        return torch.stack([_square(self._terms(norms, row)) for row in whole])

    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        along, paid = norms.along(self.stack)[0], norms.paid(self.stack)[0]
        for trade, much in zip(self.norm.trades, c, strict=True):
            for block, rows, change in (
                (trade.table, trade.rows, much * along),
                (trade.partner, trade.partner_rows, -much * along),
                (trade.bias, trade.rows, -much * paid),
            ):
                moved = torch.zeros_like(self.places[block].of(norms.x))
                moved[slice(*rows)] = change
                yield self.places[block], moved


@dataclass(frozen=True, eq=False)
class Constant(Seldom):
    """A constant that two tables trade, or that softmax ignores."""

    spec: Spec
    """With its shift alone."""
    shift: Shift
    key: str
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""
        return shift_shape(self.spec, self.shift)

    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        moved = {
            block: torch.zeros(place.size, dtype=c.dtype, device=c.device) for block, place in self.places.items()
        }
        add_shifts(self.spec, {self.key: c}, moved)
        for block, change in moved.items():
            yield self.places[block], change


@dataclass(frozen=True, eq=False)
class CarriedOn(Seldom):
    """A constant that one tensor has more, and others less, of whatever layers."""

    carried: Carried
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""
        return self.carried.shape or (1,)

    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        v = c.reshape(self.carried.shape)
        for block in self.carried.blocks:
            same = torch.zeros_like(self.places[block].of(norms.x))
            yield (
                self.places[block],
                self.carried.add(block, v, same, lambda b: self.places[b].of(norms.x)).to(c.dtype),
            )


def _square(terms: Terms) -> Tensor:
    return torch.stack([change.square().sum() for _, change in terms]).sum()
