"""LayerNorms of all layers at once, and their readers, as views of a flat vector of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from isomerge.research.optim.layout import View
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.norms import Norm


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
