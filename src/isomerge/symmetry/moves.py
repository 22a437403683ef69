"""Moves: what may be done to some tensors, by one element each, and changes no output.

Whatever a spec states beside its spaces and shifts, and all that LayerNorm leaves free, is a `Move` once its
tensors are known (`isomerge.symmetry.stated`). Those of norms are here: a norm with the gains g and the bias b
gives ``g x + b``, x having the mean zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.norms import LayerNorms, Norm, gain_across, gain_along
from isomerge.symmetry.stated import Move

ONES, GAIN, FOLD, SCALE, MADE = "norm.ones.", "norm.gain.", "norm.fold.", "norm.scale.", "norm.made."
TIED, BETWEEN = "norm.tied.", "norm.between."
KINDS = (ONES, GAIN, FOLD, SCALE, MADE, TIED, BETWEEN)
"""Of elements that are called by a block."""


@dataclass(frozen=True)
class Along(Move):
    """What a writer has more along the ones; of the block's shape, 1 long along the stream. Of norms' moves, by one
    element that is called by a block, the plainest."""

    kind: ClassVar[str] = ONES
    block: Block

    @property
    def element_keys(self) -> Sequence[str]:
        return [self.kind + self.block.key]

    @property
    def changed(self) -> Collection[Block]:
        return [self.block]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        return {self.block: tensors[self.block] + element.to(tensors[self.block])}


class Between(Along):
    """The same of a writer that reads another stream, or its bias, after all that it gets from the norm there."""

    kind = BETWEEN


@dataclass(frozen=True)
class Against(Along):
    """What a reader takes more against the ones, ``W + c (1/g)^T``; its bias loses ``c sum(b/g)``."""

    kind = GAIN
    norm: Norm
    axis: int

    @property
    def changed(self) -> Collection[Block]:
        return [self.block, *(bias for bias, reader in self.norm.reader_biases.items() if reader == self.block)]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        norm, weight = self.norm, tensors[self.block]
        gain = gain_across(norm, tensors, weight, self.axis)
        c = norm.of_rows(self.block, element, biased=None if norm.bias is None else True).double()
        moved = {self.block: weight + (c / gain).to(weight)}
        if norm.bias is None:
            return moved
        made = (tensors[norm.bias].double() / gain.flatten()).sum()
        for bias in (block for block in self.changed if block != self.block):
            moved[bias] = tensors[bias] - norm.paid(bias, c.squeeze(self.axis) * made).to(tensors[bias])
        return moved


@dataclass(frozen=True)
class Folded(Along):
    """What a norm's bias has more [width], of which it may be the mean alone that counts (`Norm.level`).

    Its readers' biases lose what they make of it; readers without one take so much against the ones that they make
    of the new bias what they made of the old one; a writer's bias, or values, lose what a stream carries on.
    """

    kind = FOLD
    norm: Norm

    @property
    def changed(self) -> Collection[Block]:
        norm = self.norm
        carried = [norm.carried] if norm.carried is not None else []
        through = [] if norm.through is None else norm.through.changed
        return list(dict.fromkeys([self.block, *norm.opened, *norm.reader_biases, *carried, *through]))

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        norm, delta, moved = self.norm, self.norm.foldable(element), dict(tensors)

        def take_off(block: Block, amount: Tensor) -> None:
            moved[block] = moved[block] - amount.to(moved[block])

        take_off(self.block, -delta)
        for reader, axis in norm.opened.items():
            gain = gain_across(norm, moved, moved[reader], axis)
            made = moved[reader].double().movedim(axis, -1) @ delta.double()
            c = made / (moved[self.block].double() / gain.flatten()).sum()
            take_off(reader, norm.of_rows(reader, c.unsqueeze(-1).movedim(-1, axis), biased=False) / gain)
        for bias, reader in norm.reader_biases.items():
            take_off(bias, norm.paid(bias, norm.made_of(reader, moved[reader], delta)))
        if norm.carried is not None:
            take_off(norm.carried, delta)
        if norm.through is not None:
            moved |= norm.through.passed_on(delta, moved)
        return {block: moved[block] for block in self.changed}


@dataclass(frozen=True)
class Unstored(Along):
    """What a reader without a bias makes more of its norm's bias, where that is free
    (`isomerge.symmetry.unstored_biases`): ``W + c (1/g)^T`` with ``c sum(b/g)`` so much. An output's bias loses
    what that adds."""

    kind = MADE
    norm: Norm

    @property
    def changed(self) -> Collection[Block]:
        paid = (bias.into for bias in self.norm.made if bias.reader == self.block)
        return [self.block, *(block for block in paid if block is not None)]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        norm, weight, moved = self.norm, tensors[self.block], dict(tensors)
        assert norm.bias is not None
        gain = gain_across(norm, tensors, weight, norm.opened[self.block])
        c = element.double() / (tensors[norm.bias].double() / gain.flatten()).sum()
        moved[self.block] = weight + (c / gain).to(weight)
        for bias in norm.made:
            if bias.reader == self.block and bias.into is not None:
                moved[bias.into] = moved[bias.into] - bias.through(element, moved).to(moved[bias.into])
        return {block: moved[block] for block in self.changed}


@dataclass(frozen=True)
class Traded(Along):
    """What a table that is the head as well trades with others, along the reciprocals of the gains of the norm that
    the head reads; [trades of the table]."""

    kind = TIED
    norm: Norm

    @property
    def changed(self) -> Collection[Block]:
        return {block for trade in self.norm.trades for block in (trade.table, trade.partner, trade.bias)}

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        assert self.norm.gain is not None
        assert self.norm.bias is not None
        along = gain_along(self.norm, tensors[self.norm.gain], 1, 0).reciprocal()
        paid = (tensors[self.norm.bias].double() * along).sum()
        moved = {block: tensors[block].clone() for block in self.changed}
        for trade, c in zip(self.norm.trades, element.double(), strict=True):
            trade.add(c, along, paid, moved)
        return moved


@dataclass(frozen=True)
class Scaled(Along):
    """By what a norm's gains are multiplied, and its bias; [width]. Its readers are divided by it."""

    kind = SCALE
    norm: Norm

    @property
    def changed(self) -> Collection[Block]:
        return [self.block, *self.norm.readers, *([] if self.norm.bias is None else [self.norm.bias])]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        norm, own, factor, less = self.norm, tensors[self.block], element.double(), self.block.line.less
        moved = {self.block: ((own.double() + less) * factor - less).to(own)}
        if norm.bias is not None:
            moved[norm.bias] = tensors[norm.bias] * element.to(tensors[norm.bias])
        for reader, axis in norm.readers.items():
            weight = tensors[reader]
            along = factor.reshape([-1 if k == axis else 1 for k in range(weight.ndim)])
            moved[reader] = (weight.double() / along).to(weight)
        return moved


def norm_moves(free: LayerNorms, elements: Collection[str], blocks: Sequence[Block]) -> list[Move]:
    """Those moves of norms that have an element, in the order of the blocks that these are called by.

    Args:
        free: what LayerNorm leaves free in the blocks.
        elements: the elements' keys.
        blocks: of a unit.
    """
    called = (block for block in blocks if any(kind + block.key in elements for kind in KINDS))
    return [move for block in called for move in _moves_of(free, block, elements)]


def _moves_of(free: LayerNorms, block: Block, elements: Collection[str]) -> Iterator[Move]:
    """Those of the elements that are called by one block."""
    yield from (of_writer(block) for of_writer in (Along, Between) if of_writer.kind + block.key in elements)
    if GAIN + block.key in elements:
        read = free.reader(block)
        if read is None:
            raise AssertionError(f"{block.key} has an element, and reads no norm of its unit")
        yield Against(block, *read)
    for norm in free.norms:
        if norm.gain == block and SCALE + block.key in elements:
            yield Scaled(block, norm)
        if norm.bias == block and FOLD + block.key in elements:
            yield Folded(block, norm)
        if block in norm.opened and MADE + block.key in elements:
            yield Unstored(block, norm)
        if norm.trades and norm.trades[0].table == block and TIED + block.key in elements:
            yield Traded(block, norm)


def opened(moves: Iterable[Move]) -> Iterator[tuple[Norm, Block, int]]:
    """The readers that take against the ones what a norm's bias has less, or what they make of it has more: norm,
    reader, axis."""
    for move in moves:
        if isinstance(move, Folded | Unstored):
            readers = move.norm.opened
            kept = readers if isinstance(move, Folded) else {move.block: readers[move.block]}
            yield from ((move.norm, reader, axis) for reader, axis in kept.items())
