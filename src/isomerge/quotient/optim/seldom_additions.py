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

from isomerge.quotient.optim.norm_stacks import NormsHere, NormStack
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
    def _terms(self, here: NormsHere, c: Tensor) -> Terms:
        """What it adds, by what is free; linear in it."""

    def push(self, here: NormsHere, c: Tensor, out: Tensor) -> None:
        """See `Addition`."""
        for at, change in self._terms(here, c):
            at.of(out).add_(change)

    def pull(self, here: NormsHere, d: Tensor) -> Tensor:
        """See `Addition`."""
        with torch.enable_grad():
            c = torch.zeros(self.shape, dtype=d.dtype, device=d.device, requires_grad=True)
            added = list(self._terms(here, c))
            (met,) = torch.autograd.grad([change for _, change in added], c, [at.of(d) for at, _ in added])
        return met

    def squares(self, here: NormsHere) -> Tensor:
        """See `Addition`; on average."""
        ones = torch.ones(self.shape, dtype=here.x.dtype, device=here.x.device)
        return _square(self._terms(here, ones)) / prod(self.shape)


@dataclass(frozen=True, eq=False)
class Made(Seldom):
    """What a reader without a bias makes of its norm's bias, where it may be anything."""

    stack: NormStack
    one: UnstoredBias
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""
        return tuple(1 if k == self.one.axis else n for k, n in enumerate(self.places[self.one.reader].size))

    def squares(self, here: NormsHere) -> Tensor:
        """See `Addition`."""
        return self.one.rows(self.places[self.one.reader].of(here.x)) * here.along(self.stack).square().sum()

    def _terms(self, here: NormsHere, c: Tensor) -> Terms:
        one, at = self.one, self.places[self.one.reader]
        free = torch.where(one.rows(at.of(here.x)), c, torch.zeros_like(c))
        yield at, free * here.along(self.stack)[0].reshape([-1 if k == one.axis else 1 for k in range(c.ndim)])
        if one.into is not None and one.via is not None:
            tensors = {block: self.places[block].of(here.x) for block in (one.via, one.into)}
            yield self.places[one.into], -(one.through(free, tensors) * here.paid(self.stack)[0]).to(c.dtype)


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

    def squares(self, here: NormsHere) -> Tensor:
        """See `Addition`."""
        whole = torch.eye(len(self.norm.trades), dtype=here.x.dtype, device=here.x.device)
        return torch.stack([_square(self._terms(here, one)) for one in whole])

    def _terms(self, here: NormsHere, c: Tensor) -> Terms:
        along, paid = here.along(self.stack)[0], here.paid(self.stack)[0]
        for trade, much in zip(self.norm.trades, c, strict=True):
            for block, rows, change in (
                (trade.table, trade.rows, much * along),
                (trade.partner, trade.partner_rows, -much * along),
                (trade.bias, trade.rows, -much * paid),
            ):
                moved = torch.zeros_like(self.places[block].of(here.x))
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

    def _terms(self, here: NormsHere, c: Tensor) -> Terms:
        moved = {
            block: torch.zeros(place.size, dtype=c.dtype, device=c.device) for block, place in self.places.items()
        }
        add_shifts(self.spec, {self.key: c}, moved)
        for block, change in moved.items():
            yield self.places[block], change


@dataclass(frozen=True, eq=False)
class CarriedOn(Seldom):
    """A constant that one tensor has more, and others less, of whatever layers."""

    one: Carried
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Addition`."""
        return self.one.shape or (1,)

    def _terms(self, here: NormsHere, c: Tensor) -> Terms:
        v = c.reshape(self.one.shape)
        for block in self.one.blocks:
            stays = torch.zeros_like(self.places[block].of(here.x))
            yield self.places[block], self.one.add(block, v, stays, lambda b: self.places[b].of(here.x)).to(c.dtype)


def _square(terms: Terms) -> Tensor:
    return torch.stack([change.square().sum() for _, change in terms]).sum()
