"""What may be added to parameters and changes no output: what LayerNorm leaves free, and constants that are traded.

Directions of the vertical space beside those of groups (`isomerge.research.optim.vertical`). At a norm with gains g
and bias b (`isomerge.symmetry.norm_stage` has the moves, of which these are the derivatives at the identity):

* a writer moves by ``1 c^T``, along the ones of its stream;
* a reader by ``c (1/g)^T``, and its bias by ``-c s``, with ``s = sum(b/g)``;
* a norm's bias by ``d``, its readers' biases by ``-W d``; where a reader has none it moves by ``-W d (1/g)^T``, and
  all else by s times as much: the same directions, and those that stay where s is zero;
* a reader without a bias, of which the bias were free, by ``c (1/g)^T``, and the output's bias by ``-s V c``;
* a table that is the head as well by ``c / g``, another by ``-c / g``, and the head's bias by ``-c s``;
* a last norm's gains and bias by ``f g`` and ``f b``, its readers by ``-W diag(f)``;
* two tables that are added, or what softmax compares, by a constant (`isomerge.symmetry.stage`);
* a constant that may stand in one tensor or in others, of whatever layers (`isomerge.symmetry.carried`).

All are linear in what is free. Where a norm has a gain of zero nothing is moved: what it leaves free is another.

Of few tensors an addition says what it adds (`Seldom`), and its adjoint is what autograd makes of that: it costs
more, and is no second text that could differ.

LayerNorms of all layers are looked at at once, with their readers, as views of a flat vector of parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from isomerge.research.optim.layout import View
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import Carried
from isomerge.symmetry.language.spec import Shift, Spec
from isomerge.symmetry.layer_norms import LayerNorms
from isomerge.symmetry.norms import Norm
from isomerge.symmetry.stage import add_shifts, find_shifts, shift_shape
from isomerge.symmetry.unstored_biases import UnstoredBias

Places = Mapping[Block, View]
Terms = Iterator[tuple[View, Tensor]]
"""Views of a flat vector of parameters, and what is added to each, of its shape."""


class Addition(Protocol):
    """One kind of direction, in all layers where it is of one form."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is free."""
        ...

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        """Add what it moves, by what is free, to a change of the parameters [parameters], in place."""
        ...

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        """The adjoint: of a change of the parameters, what meets each direction, of ``shape``."""
        ...

    def squares(self, norms: NormsAt) -> Tensor:
        """The squared lengths of its directions, one for each free number: broadcast to ``shape``."""
        ...


class Additions:
    """All such directions of a module.

    Args:
        spec: with its shifts of constants.
        free: what LayerNorm leaves free.
        places: where the blocks lie that are moved or looked at.
    """

    def __init__(self, spec: Spec, free: LayerNorms, places: Places) -> None:
        self.each = [*_written(free, places), *_normed(free.norms, places), *_seldom(spec, free, places)]
        self.sizes = [prod(addition.shape) for addition in self.each]
        self.size = sum(self.sizes)

    def parts(self, flat: Tensor) -> Iterator[tuple[Addition, Tensor]]:
        """Every addition, and its part of a flat vector of what is free [size]."""
        for addition, part in zip(self.each, flat.split(self.sizes), strict=True):
            yield addition, part.view(addition.shape)

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        """Add what all that is free [size] moves to a change of the parameters [parameters], in place."""
        for addition, part in self.parts(c):
            addition.push(norms, part, out)

    def pull(self, norms: NormsAt, d: Tensor, out: Tensor) -> None:
        """The adjoint of `push`, into a vector [size]."""
        for addition, part in self.parts(out):
            part.copy_(addition.pull(norms, d))


class AdditionSolver:
    """An approximate inverse of the normal equations of these directions: the whole matrix of a norm's bias, which
    meets all its readers, and the diagonal of all else.

    Args:
        additions: of a module.
        norms: the module's norms at the point.
    """

    def __init__(self, additions: Additions, norms: NormsAt) -> None:
        self.additions = additions
        self.numbers = torch.zeros(additions.size, dtype=norms.x.dtype, device=norms.x.device)
        self.matrices: dict[Addition, Tensor] = {}
        for addition, part in additions.parts(self.numbers):
            if isinstance(addition, Folded):
                values, vectors = torch.linalg.eigh(addition.gram(norms))
                floor = values[:, -1:] * (values.shape[-1] * torch.finfo(values.dtype).eps)
                inverse = torch.where(values > floor, 1 / values, torch.zeros_like(values))
                self.matrices[addition] = (vectors * inverse.unsqueeze(-2)) @ vectors.mT
            else:
                squares = addition.squares(norms)
                part.copy_(torch.where(squares > 0, 1 / squares, torch.zeros_like(squares)).expand(part.shape))

    def solve(self, c: Tensor) -> Tensor:
        """Its own solution for right-hand sides [size]."""
        solved = c * self.numbers
        for (addition, part), (_, right) in zip(self.additions.parts(solved), self.additions.parts(c), strict=True):
            if (inverse := self.matrices.get(addition)) is not None:
                part.copy_((inverse @ right.unsqueeze(-1)).squeeze(-1))
        return solved


@dataclass(frozen=True, eq=False)
class Written(Addition):
    """What writers put along the ones of their stream."""

    at: View
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        return _single(self.at, self.axis)

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        self.at.of(out).add_(c)

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        return self.at.of(d).sum(self.axis, keepdim=True)

    def squares(self, norms: NormsAt) -> Tensor:
        return norms.x.new_tensor(float(self.at.size[self.axis]))


@dataclass(frozen=True, eq=False)
class Read(Addition):
    """What readers take against the ones of their stream, behind its norm's gain."""

    stack: NormStack
    reader: Reader

    @property
    def shape(self) -> tuple[int, ...]:
        return _single(self.reader.at, self.reader.axis)

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        reader = self.reader
        reader.at.of(out).addcmul_(c, across(norms.along(self.stack), reader.at, reader.axis))
        if (bias := self._pays()) is not None:
            bias.of(out).addcmul_(c.squeeze(reader.axis), each(norms.paid(self.stack), bias), value=-1)

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        reader, along = self.reader, norms.along(self.stack)
        width = reader.at.size[reader.axis]
        met = reader.made(d, along.expand(-1, width))
        if (bias := self._pays()) is not None:
            met = met - bias.of(d) * each(norms.paid(self.stack), bias)
        return met.unsqueeze(reader.axis)

    def squares(self, norms: NormsAt) -> Tensor:
        width = self.reader.at.size[self.reader.axis]
        squares = norms.along(self.stack).square().expand(-1, width).sum(-1)
        squares = squares if self._pays() is None else squares + norms.paid(self.stack).square()
        return each(squares, self.reader.at)

    def _pays(self) -> View | None:
        return None if self.stack.bias is None else self.reader.bias


@dataclass(frozen=True, eq=False)
class Folded(Addition):
    """Norms' biases, which may as well stand in their readers'."""

    stack: NormStack
    bias: View

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bias.size

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        share = self._share(norms)
        self.bias.of(out).addcmul_(c, share.unsqueeze(-1))
        for reader in self.stack.readers:
            made = reader.made(norms.x, c)
            if reader.bias is not None:
                reader.bias.of(out).addcmul_(made, each(share, reader.bias), value=-1)
            else:
                along = across(norms.along(self.stack), reader.at, reader.axis)
                reader.at.of(out).addcmul_(made.unsqueeze(reader.axis), along, value=-1)
        if self.stack.carried is not None:
            self.stack.carried.of(out).addcmul_(c, share.unsqueeze(-1), value=-1)

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        share = self._share(norms).unsqueeze(-1)
        met = self.bias.of(d) * share
        for reader in self.stack.readers:
            if reader.bias is not None:
                met = met - reader.unmade(norms.x, reader.bias.of(d)) * share
            else:
                met = met - reader.unmade(norms.x, reader.made(d, norms.along(self.stack)))
        return met if self.stack.carried is None else met - self.stack.carried.of(d) * share

    def squares(self, norms: NormsAt) -> Tensor:
        return self.gram(norms).diagonal(dim1=-2, dim2=-1)

    def gram(self, norms: NormsAt) -> Tensor:
        """The normal equations [norms, width, width]."""
        share = self._share(norms).square()
        count, width = self.bias.size
        own = torch.eye(width, dtype=norms.x.dtype, device=norms.x.device).expand(count, width, width)
        gram = own * (share * (2 if self.stack.carried is not None else 1)).view(-1, 1, 1)
        for reader in self.stack.readers:
            rows = reader.rows(norms.x)
            pays = share if reader.bias is not None else norms.along(self.stack).square().sum(-1)
            gram = gram + rows.mT @ rows * pays.view(-1, 1, 1)
        return gram

    def _share(self, norms: NormsAt) -> Tensor:
        return norms.paid(self.stack) if self.stack.opens else norms.alive(self.stack)


@dataclass(frozen=True, eq=False)
class Scaled(Addition):
    """Last norms' gains, which may as well stand in their readers."""

    stack: NormStack
    gain: View

    @property
    def shape(self) -> tuple[int, ...]:
        return self.gain.size

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        f = c * norms.alive(self.stack).unsqueeze(-1)
        self.gain.of(out).addcmul_(f, norms.gains(self.stack))
        if self.stack.bias is not None:
            self.stack.bias.of(out).addcmul_(f, self.stack.bias.of(norms.x))
        for reader in self.stack.readers:
            reader.at.of(out).addcmul_(reader.at.of(norms.x), across(f, reader.at, reader.axis), value=-1)

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        met = norms.gains(self.stack) * self.gain.of(d)
        if self.stack.bias is not None:
            met = met + self.stack.bias.of(norms.x) * self.stack.bias.of(d)
        for reader in self.stack.readers:
            met = met - (reader.rows(norms.x) * reader.rows(d)).sum(1)
        return met * norms.alive(self.stack).unsqueeze(-1)

    def squares(self, norms: NormsAt) -> Tensor:
        squares = norms.gains(self.stack).square()
        if self.stack.bias is not None:
            squares = squares + self.stack.bias.of(norms.x).square()
        for reader in self.stack.readers:
            squares = squares + reader.rows(norms.x).square().sum(1)
        return squares * norms.alive(self.stack).unsqueeze(-1)


def _written(free: LayerNorms, places: Places) -> Iterator[Addition]:
    lines: dict[tuple[str, int], list[Block]] = {}
    for block, axis in free.writers.items():
        lines.setdefault((block.line.name, axis), []).append(block)
    for (_, axis), blocks in lines.items():
        for (at,) in stacked([[places[block]] for block in blocks]):
            assert at is not None
            yield Written(at, axis + 1)


def _normed(norms: Sequence[Norm], places: Places) -> Iterator[Addition]:
    for stack in norm_stacks(norms, places):
        yield from (Read(stack, reader) for reader in stack.readers if reader.slack)
        if stack.folds and stack.bias is not None:
            yield Folded(stack, stack.bias)
        if stack.scales and stack.gain is not None:
            yield Scaled(stack, stack.gain)


def _seldom(spec: Spec, free: LayerNorms, places: Places) -> Iterator[Addition]:
    yield from (CarriedOn(vector, places) for vector in free.carried)
    for norm in free.norms:
        alone = next(norm_stacks([norm], places))
        yield from (Made(alone, bias, places) for bias in norm.made)
        if norm.trades:
            yield Traded(alone, norm, places)
    for shift, key, parts in find_shifts(spec, list(places)):
        if shift.constant and shift.against is None:
            own = spec.restrict([shift.name])
            yield Constant(own, shift, key, {block: places[block] for block in parts.values()})


def _single(at: View, axis: int) -> tuple[int, ...]:
    """The shape of a view, one long along an axis."""
    return tuple(1 if k == axis else n for k, n in enumerate(at.size))


class Seldom(Addition):
    """An addition that says what it adds; the rest follows."""

    @abstractmethod
    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        """What it adds, by what is free; linear in it."""

    def push(self, norms: NormsAt, c: Tensor, out: Tensor) -> None:
        for at, change in self._terms(norms, c):
            at.of(out).add_(change)

    def pull(self, norms: NormsAt, d: Tensor) -> Tensor:
        with torch.enable_grad():
            c = torch.zeros(self.shape, dtype=d.dtype, device=d.device, requires_grad=True)
            added = list(self._terms(norms, c))
            (met,) = torch.autograd.grad([change for _, change in added], c, [at.of(d) for at, _ in added])
        return met

    def squares(self, norms: NormsAt) -> Tensor:
        ones = torch.ones(self.shape, dtype=norms.x.dtype, device=norms.x.device)
        return _square(self._terms(norms, ones)) / prod(self.shape)  # on average


@dataclass(frozen=True, eq=False)
class Made(Seldom):
    """What a reader without a bias makes of its norm's bias, where it may be anything."""

    stack: NormStack
    bias: UnstoredBias
    places: Mapping[Block, View]

    @property
    def shape(self) -> tuple[int, ...]:
        return _single(self.places[self.bias.reader], self.bias.axis)

    def squares(self, norms: NormsAt) -> Tensor:
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
        return (len(self.norm.trades),)

    def squares(self, norms: NormsAt) -> Tensor:
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
        return self.carried.shape or (1,)

    def _terms(self, norms: NormsAt, c: Tensor) -> Terms:
        v = c.reshape(self.carried.shape)
        for block in self.carried.blocks:
            same = torch.zeros_like(self.places[block].of(norms.x))
            yield (
                self.places[block],
                self.carried.seen(block, v, same, lambda b: self.places[b].of(norms.x)).to(c.dtype),
            )


def _square(terms: Terms) -> Tensor:
    return torch.stack([change.square().sum() for _, change in terms]).sum()


@dataclass(frozen=True, eq=False)
class Reader:
    """A reader of each of several norms."""

    at: View
    """``[norm, ...]``."""
    axis: int
    """Of the view, along the stream."""
    bias: View | None
    """``[norm, ...]`` without the stream."""
    slack: bool
    """Whether it may take what it likes against the ones."""

    def rows(self, x: Tensor) -> Tensor:
        """Its weights as matrices [norm, outputs, width]; a view where the stream is their first or last axis."""
        weight = self.at.of(x)
        count, width = len(weight), weight.shape[self.axis]
        if self.axis == 1:
            return weight.reshape(count, width, -1).mT
        return weight.movedim(self.axis, -1).reshape(count, -1, width)

    def made(self, x: Tensor, d: Tensor) -> Tensor:
        """What it makes of vectors [norm, width]: its shape without the stream."""
        shape = [n for k, n in enumerate(self.at.size) if k != self.axis]
        return (self.rows(x) @ d.unsqueeze(-1)).reshape(shape)

    def unmade(self, x: Tensor, out: Tensor) -> Tensor:
        """The adjoint of `made` [norm, width]."""
        return (out.reshape(len(out), 1, -1) @ self.rows(x)).squeeze(1)


@dataclass(frozen=True, eq=False)
class NormStack:
    """Norms of one form, each in another layer."""

    count: int
    gain: View | None
    """``[norm, width]``; None where norms have no tensors."""
    less: float
    """What gains are stored less."""
    bias: View | None
    carried: View | None
    readers: tuple[Reader, ...]
    folds: bool
    scales: bool

    @property
    def opens(self) -> bool:
        """Whether some reader has no bias and takes against the ones what the norm's bias has less."""
        return self.folds and any(reader.bias is None for reader in self.readers)


class NormsAt:
    """What norms are at one point.

    Args:
        x: the parameters, flat; not to be changed.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._along: dict[NormStack, Tensor] = {}
        self._paid: dict[NormStack, Tensor] = {}

    def gains(self, stack: NormStack) -> Tensor:
        """Whole gains [norm, width]."""
        assert stack.gain is not None
        return stack.gain.of(self.x) + stack.less

    def alive(self, stack: NormStack) -> Tensor:
        """One for each norm, and zero where a gain is zero [norm]."""
        if stack.gain is None:
            return self.x.new_ones(stack.count)
        return (self.gains(stack) != 0).all(-1).to(self.x.dtype)

    def along(self, stack: NormStack) -> Tensor:
        """The reciprocals of gains [norm, width]; zeros where one of a norm's is zero. Of norms without tensors one
        [norm, 1]."""
        if stack.gain is None:
            return self.x.new_ones(stack.count, 1)
        if stack not in self._along:
            gains, alive = self.gains(stack), self.alive(stack).unsqueeze(-1).bool()
            self._along[stack] = torch.where(alive, gains, torch.ones_like(gains)).reciprocal() * alive
        return self._along[stack]

    def paid(self, stack: NormStack) -> Tensor:
        """What norms' biases make of the reciprocals of their gains [norm]."""
        assert stack.bias is not None
        if stack not in self._paid:
            self._paid[stack] = (self.along(stack) * stack.bias.of(self.x)).sum(-1)
        return self._paid[stack]


def across(rows: Tensor, at: View, axis: int) -> Tensor:
    """A vector for each norm [norm, width], along an axis of a view; one long where the vectors are."""
    return rows.reshape([rows.shape[0], *(-1 if k == axis else 1 for k in range(1, len(at.size)))])


def each(numbers: Tensor, at: View) -> Tensor:
    """A number for each norm, along the first axis of a view."""
    return numbers.reshape([-1, *(1 for _ in at.size[1:])])


def norm_stacks(norms: Sequence[Norm], places: Mapping[Block, View]) -> Iterator[NormStack]:
    """Norms, together where they and all that they move are of the same lines and lie in equal steps.

    Args:
        norms: of a module.
        places: where the blocks lie.
    """
    alike: dict[tuple[object, ...], list[Norm]] = {}
    for norm in norms:
        lines = [None if block is None else (block.line.name, places[block].size) for block in _blocks(norm)]
        form = tuple((k, block in norm.slack) for block, k in norm.readers.items())
        alike.setdefault((*lines, form, norm.folds, norm.scales), []).append(norm)
    for group in alike.values():
        first = group[0]
        rows = [[None if block is None else places[block] for block in _blocks(norm)] for norm in group]
        for gain, bias, carried, *rest in stacked(rows):
            views = list(zip(rest[::2], rest[1::2], strict=True))
            readers = tuple(
                Reader(at, axis + 1, own, block in first.slack)
                for (at, own), (block, axis) in zip(views, first.readers.items(), strict=True)
                if at is not None
            )
            count = next(view.size[0] for view in (gain, *rest) if view is not None)
            less = 0.0 if first.gain is None else float(first.gain.line.less)
            yield NormStack(count, gain, less, bias, carried, readers, first.folds, first.scales)


def _blocks(norm: Norm) -> list[Block | None]:
    """All blocks of a norm in one order: gain, bias, what carries it on, then every reader and its bias."""
    biases = {reader: bias for bias, reader in norm.reader_biases.items()}
    blocks: list[Block | None] = [norm.gain, norm.bias, norm.carried]
    for reader in norm.readers:
        blocks += [reader, biases.get(reader)]
    return blocks


def stacked(rows: Sequence[Sequence[View | None]]) -> Iterator[list[View | None]]:
    """Rows of views, each column as one view with a first axis that numbers the rows; row by row where those of a
    column do not lie in equal steps."""
    order = sorted(rows, key=lambda row: [view.offset for view in row if view is not None])
    columns = list(zip(*order, strict=True))
    steps = [{b.offset - a.offset for a, b in pairwise(c) if a and b} for c in columns]
    if any(len(step) > 1 for step in steps):
        for row in order:
            yield [None if view is None else view.stacked(1, 0) for view in row]
        return
    yield [
        None if column[0] is None else column[0].stacked(len(order), next(iter(step), 0))
        for column, step in zip(columns, steps, strict=True)
    ]
