"""What may be added to parameters and changes no output: what LayerNorm leaves free, and constants that are traded.

Directions of the vertical space beside those of groups (`isomerge.quotient.optim.vertical`). At a norm with gains g
and bias b (`isomerge.symmetry.norm_stage` has the moves, of which these are the derivatives at the identity):

* a writer moves by ``1 c^T``, along the ones of its stream;
* a reader by ``c (1/g)^T``, and its bias by ``-c s``, with ``s = sum(b/g)``;
* a norm's bias by ``d``, its readers' biases by ``-W d``; where a reader has none it moves by ``-W d (1/g)^T``, and
  all else by s times as much: the same directions, and those that stay where s is zero;
* a reader without a bias, of which the bias were free, by ``c (1/g)^T``, and the output's bias by ``-s V c``;
* a table that is the head as well by ``c / g``, another by ``-c / g``, and the head's bias by ``-c s``;
* a last norm's gains and bias by ``f g`` and ``f b``, its readers by ``-W diag(f)``;
* two tables that are added, or what softmax compares, by a constant (`isomerge.symmetry.stage`).

All are linear in what is free, so that their adjoint is what autograd makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import LayerNorms
from isomerge.symmetry.norms import Norm, gain_across, gain_along
from isomerge.symmetry.stage import add_shifts, find_shifts, shift_shape
from isomerge.symmetry.unstored_biases import UnstoredBias

Terms = Iterator[tuple[Block, Tensor]]
"""Blocks, and what is added to each: of its shape, or one long where it is constant."""


@dataclass(frozen=True, eq=False)
class Addition:
    """One kind of direction at one tensor."""

    shape: tuple[int, ...]
    """Of what is free."""
    offset: int
    """In the flat vector of all that is free."""
    add: Callable[[Here, Tensor], Terms]
    """What it adds, by what is free; linear in it."""
    squares: Callable[[Here], Tensor | float]
    """The squared lengths of its directions, one for each free number: broadcast to ``shape``."""

    @property
    def numbers(self) -> int:
        """How many are free."""
        return prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """The part of a flat vector, a view of ``shape``."""
        return flat[self.offset : self.offset + self.numbers].view(self.shape)


@dataclass(frozen=True, eq=False)
class Here:
    """The blocks at one point, and what norms are there."""

    x: Mapping[Block, Tensor]

    def along(self, norm: Norm, block: Block, axis: int) -> Tensor:
        """The reciprocals of a norm's gains along an axis of a block; zeros where one of them is zero: what the
        norm leaves free is another there."""
        weight = self.x[block]
        gain = gain_across(norm, self.x, weight, axis)
        alive = norm.is_invertible(self.x)
        return (gain.reciprocal() if alive else torch.zeros_like(gain)).to(weight.dtype)

    def paid(self, norm: Norm) -> Tensor:
        """What a norm's bias makes of the reciprocals of its gains: a number."""
        assert norm.bias is not None
        bias = self.x[norm.bias]
        return (self.along(norm, norm.bias, 0) * bias).sum()

    def alive(self, norm: Norm) -> float:
        """One, and zero where a gain is zero."""
        return float(norm.is_invertible(self.x))


class Additions:
    """All such directions of a module.

    Args:
        spec: with its shifts of constants.
        free: what LayerNorm leaves free.
        blocks: those that are moved or looked at.
        shapes: of the blocks.
    """

    def __init__(
        self, spec: Spec, free: LayerNorms, blocks: Iterable[Block], shapes: Mapping[Block, tuple[int, ...]]
    ) -> None:
        self.size = 0
        self.each: list[Addition] = []
        self.folds: list[tuple[Addition, Norm]] = []
        """Those of norms' biases, which meet in their readers."""
        for block, axis in free.writers.items():
            shape = tuple(1 if k == axis else n for k, n in enumerate(shapes[block]))
            self._append(shape, partial(_written, block), _same(float(shapes[block][axis])))
        for norm in free.norms:
            self._append_norm(norm, shapes)
        for shift, key, parts in find_shifts(spec, list(blocks)):
            if shift.constant and shift.against is None:
                add = partial(_constant, spec.restrict([shift.name]), key, parts)
                self._append(shift_shape(spec, shift), add, partial(_average, add, shift_shape(spec, shift)))

    def _append(
        self, shape: tuple[int, ...], add: Callable[..., Terms], squares: Callable[[Here], Tensor | float]
    ) -> Addition:
        self.each.append(Addition(shape, self.size, add, squares))
        self.size += self.each[-1].numbers
        return self.each[-1]

    def _append_norm(self, norm: Norm, shapes: Mapping[Block, tuple[int, ...]]) -> None:
        for block, axis in norm.slack.items():
            shape = tuple(1 if k == axis else n for k, n in enumerate(shapes[block]))
            self._append(shape, partial(_read, norm, block, axis), partial(_read_squares, norm, block, axis))
        if norm.bias is not None and norm.folds:
            fold = self._append(shapes[norm.bias], partial(_folded, norm), _same(1.0))
            self.folds.append((fold, norm))
        for one in norm.made:
            shape = tuple(1 if k == one.axis else n for k, n in enumerate(shapes[one.reader]))
            squares = partial(_made_squares, norm, one)
            self._append(shape, partial(_made, norm, one), squares)
        if norm.trades:
            self._append((len(norm.trades),), partial(_traded, norm), partial(_traded_squares, norm))
        if norm.gain is not None and norm.scales:
            self._append(shapes[norm.gain], partial(_scaled, norm), partial(_scaled_squares, norm))

    def terms(self, here: Here, c: Tensor) -> Terms:
        """What is added to blocks, by all that is free [size]."""
        for addition in self.each:
            yield from addition.add(here, addition.of(c))

    def pulled(self, here: Here, d: Mapping[Block, Tensor], like: Tensor) -> Tensor:
        """The adjoint: of a change of the blocks, what meets each direction [size], of the dtype of ``like``."""
        with torch.enable_grad():
            c = torch.zeros(self.size, dtype=like.dtype, device=like.device, requires_grad=True)
            added = list(self.terms(here, c))
            sums = [change.expand_as(here.x[block]) for block, change in added]
            (met,) = torch.autograd.grad(sums, c, [d[block] for block, _ in added])
        return met


class AdditionSolver:
    """An approximate inverse of the normal equations of these directions: the whole matrix of a norm's bias, the
    diagonal of all else.

    Args:
        additions: of a module.
        here: the point.
        like: gives the dtype and device.
    """

    def __init__(self, additions: Additions, here: Here, like: Tensor) -> None:
        self.numbers = torch.zeros(additions.size, dtype=like.dtype, device=like.device)
        self.matrices: list[tuple[Addition, Tensor]] = []
        for addition in additions.each:
            squares = torch.as_tensor(addition.squares(here), dtype=like.dtype, device=like.device)
            inverse = torch.where(squares > 0, 1 / squares, torch.zeros_like(squares))
            addition.of(self.numbers).copy_(inverse.expand(addition.shape))
        for addition, norm in additions.folds:
            values, vectors = torch.linalg.eigh(_fold_gram(norm, here))
            floor = values[-1] * (len(values) * torch.finfo(values.dtype).eps)
            inverse = torch.where(values > floor, 1 / values, torch.zeros_like(values))
            self.matrices.append((addition, (vectors * inverse) @ vectors.mT))
            addition.of(self.numbers).zero_()

    def solve(self, c: Tensor) -> Tensor:
        """Its own solution for right-hand sides [size]."""
        solved = c * self.numbers
        for addition, inverse in self.matrices:
            addition.of(solved).copy_(inverse @ addition.of(c))
        return solved


def _average(add: Callable[[Here, Tensor], Terms], shape: tuple[int, ...], here: Here) -> Tensor:
    """The squared length of what as many ones add, for each."""
    like = next(iter(here.x.values()))
    added = add(here, torch.ones(shape, dtype=like.dtype, device=like.device))
    return torch.stack([change.square().sum() for _, change in added]).sum() / prod(shape)


def _same(number: float) -> Callable[[Here], float]:
    return lambda _here: number


def _written(block: Block, here: Here, c: Tensor) -> Terms:
    yield block, c


def _read(norm: Norm, block: Block, axis: int, here: Here, c: Tensor) -> Terms:
    yield block, c * here.along(norm, block, axis)
    bias = next((b for b, reader in norm.reader_biases.items() if reader == block), None)
    if norm.bias is not None and bias is not None:
        yield bias, c.squeeze(axis) * -here.paid(norm)


def _read_squares(norm: Norm, block: Block, axis: int, here: Here) -> Tensor:
    squares = here.along(norm, block, axis).square().sum()
    pays = norm.bias is not None and block in norm.biased
    return squares + here.paid(norm).square() if pays else squares


def _folded(norm: Norm, here: Here, d: Tensor) -> Terms:
    assert norm.bias is not None
    if norm.opened:
        yield norm.bias, d * here.paid(norm)
    else:
        yield norm.bias, d * here.alive(norm)
    for reader, axis in norm.opened.items():
        made = (here.x[reader].movedim(axis, -1) @ d).unsqueeze(-1).movedim(-1, axis)
        yield reader, -made * here.along(norm, reader, axis)
    share = here.paid(norm) if norm.opened else here.alive(norm)
    for bias, reader in norm.reader_biases.items():
        yield bias, -(here.x[reader].movedim(norm.readers[reader], -1) @ d) * share
    if norm.carried is not None:
        yield norm.carried, -d * share


def _fold_gram(norm: Norm, here: Here) -> Tensor:
    """The normal equations of a norm's bias [width, width]."""
    assert norm.bias is not None
    bias = here.x[norm.bias]
    share = here.paid(norm).square() if norm.opened else here.alive(norm)
    own = torch.eye(len(bias), dtype=bias.dtype, device=bias.device)
    gram = own * ((2.0 if norm.carried is not None else 1.0) * share)
    for reader, axis in norm.readers.items():
        weight = here.x[reader].movedim(axis, -1).flatten(0, -2)
        pays = share if reader in norm.biased else here.along(norm, norm.bias, 0).square().sum()
        gram = gram + weight.mT @ weight * pays
    return gram


def _made(norm: Norm, one: UnstoredBias, here: Here, c: Tensor) -> Terms:
    free = torch.where(one.rows(here.x[one.reader]), c, torch.zeros_like(c))
    yield one.reader, free * here.along(norm, one.reader, one.axis)
    if one.into is not None:
        yield one.into, -(one.through(free, here.x) * here.paid(norm)).to(c.dtype)


def _made_squares(norm: Norm, one: UnstoredBias, here: Here) -> Tensor:
    rows = one.rows(here.x[one.reader])
    return rows * here.along(norm, one.reader, one.axis).square().sum()


def _traded(norm: Norm, here: Here, c: Tensor) -> Terms:
    assert norm.bias is not None
    along = here.along(norm, norm.bias, 0)
    for trade, much in zip(norm.trades, c, strict=True):
        for block, rows, change in (
            (trade.table, trade.rows, much * along),
            (trade.partner, trade.partner_rows, -much * along),
            (trade.bias, trade.rows, (-much * here.paid(norm)).reshape(())),
        ):
            moved = torch.zeros_like(here.x[block])
            moved[slice(*rows)] = change
            yield block, moved


def _traded_squares(norm: Norm, here: Here) -> Tensor:
    assert norm.bias is not None
    along, paid = here.along(norm, norm.bias, 0).square().sum(), here.paid(norm).square()
    rows = [
        [
            len(here.x[block][slice(*own)])
            for block, own in ((t.table, t.rows), (t.partner, t.partner_rows), (t.bias, t.rows))
        ]
        for t in norm.trades
    ]
    return torch.stack([along * (table + partner) + paid * bias for table, partner, bias in rows])


def _scaled(norm: Norm, here: Here, f: Tensor) -> Terms:
    assert norm.gain is not None
    f = f * here.alive(norm)
    gain = here.x[norm.gain]
    yield norm.gain, f * gain_along(norm, gain, 1, 0).to(gain.dtype)
    if norm.bias is not None:
        yield norm.bias, f * here.x[norm.bias]
    for reader, axis in norm.readers.items():
        weight = here.x[reader]
        yield reader, -weight * f.reshape([-1 if k == axis else 1 for k in range(weight.ndim)])


def _scaled_squares(norm: Norm, here: Here) -> Tensor:
    assert norm.gain is not None
    squares = gain_along(norm, here.x[norm.gain], 1, 0).to(here.x[norm.gain].dtype).square()
    if norm.bias is not None:
        squares = squares + here.x[norm.bias].square()
    for reader, axis in norm.readers.items():
        squares = squares + here.x[reader].movedim(axis, -1).flatten(0, -2).square().sum(0)
    return squares * here.alive(norm)


def _constant(spec: Spec, key: str, parts: Mapping[str, Block], here: Here, c: Tensor) -> Terms:
    moved = {block: torch.zeros_like(here.x[block]) for block in parts.values()}
    add_shifts(spec, {key: c}, moved)
    yield from moved.items()
