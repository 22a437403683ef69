"""Moves, and what statements of few tensors have in common, in the blocks of a model; and the parts of weights and
biases that they speak of, as matrices: heads, an axis of each head, and what is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from torch import Tensor

from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks, leaves
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.statements import NamedLine


class Named(dict[str, Block]):
    """The blocks of a model, or of one unit, by the names that statements know; of those that are several tensors
    they speak of none."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__({block.canonical[0]: block for block in blocks if not block.lead})

    def every(self, line: NamedLine) -> Iterator[tuple[dict[str, int], Block]]:
        """The blocks of a line, and the numbers in their names."""
        yield from ((at, block) for name, block in self.items() if (at := line.layer(name)) is not None)

    def at(self, line: NamedLine | None, numbers: Mapping[str, int] | None = None) -> Block | None:
        """The block of a line with these numbers in its name, or the first one; None where it is not there."""
        every = self.every(line) if line is not None else ()
        return next((block for at, block in every if numbers in (None, at)), None)


Moves = dict[str, Tensor]
"""Elements by key, in the order in which they act."""


class Move(Protocol):
    """What one or more elements may do to some blocks."""

    @property
    def element_keys(self) -> Sequence[str]:
        """Of all elements, in the order in which they act."""
        ...

    @property
    def changed(self) -> Collection[Block]:
        """The blocks whose numbers they may change."""
        ...

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        """The blocks that an element changes, changed, in their dtypes; the given ones stay."""
        ...


class Statement(Move, Protocol):
    """What a statement says of few tensors: what is free of them, and the one form that this has."""

    @property
    def blocks(self) -> list[Block]:
        """All that moves change and look at."""
        ...

    @property
    def changed(self) -> list[Block]:
        """All of them, where nothing else is said."""
        return self.blocks

    def shape(self, key: str) -> tuple[int, ...]:
        """That of an element."""
        ...

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings all that is free to a target's, or nearest to it; None: to the one form."""
        ...

    def drops(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> Moves:
        """What makes biases a target's that all else which folds into them moves as well: behind that."""
        return {}

    def formed(self, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks in the one form, which is where `onto` leads without a target."""
        formed = dict(tensors)
        for key, element in self.onto(tensors, None).items():
            formed |= self.moved(key, element, formed)
        return {block: formed[block] for block in self.changed}

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether tensors say what is free of them."""
        ...

    def slack(self, free: Collection[Block]) -> bool:
        """Whether it speaks of a reader that may take what it likes against the ones, which counts there: no, where
        nothing else is said."""
        return False

    def dimension(self, slack: bool) -> int:
        """How many numbers are free, without what the groups of its axes move, and what counts elsewhere."""
        ...

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far what is free is from a target's, squared and relative to it, or to all that is between them."""
        ...


def beyond(part: float, chance: float) -> float:
    """What a part of a squared distance has more than chance gives it, of all that chance leaves."""
    return max((part - chance) / (1 - chance), 0.0)


@dataclass(frozen=True)
class Rows:
    """A part of a weight, or of a bias, as [heads, along, read]; an axis that it lacks is one long."""

    block: Block
    part: int
    spec: Spec
    read: frozenset[str]
    """The atoms of what a weight reads."""
    along: str = ""

    def of(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """A new tensor, in float64."""
        view, order = self._view(tensors[self.block])
        names = self.block.parts[self.part]
        shape = [prod(n for a, n in zip(names, view.shape, strict=True) if test(a)) for test in self._tests()]
        return view.permute(order).reshape(shape).double()

    def plus(self, tensors: Mapping[Block, Tensor], more: Tensor) -> Tensor:
        """The block with so much more, a new tensor of its dtype."""
        moved = tensors[self.block].clone()
        view, order = self._view(moved)
        ordered = view.permute(order)
        ordered += more.reshape(ordered.shape).to(ordered)
        return moved

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of [heads, along, read], by the spec."""
        atoms = self.block.parts[self.part]
        counted = [(a, int(a.name) if a.name.isdigit() else self.spec.sizes[a.name]) for a in atoms]
        heads, along, read = (prod(n for a, n in counted if test(a)) for test in self._tests())
        return heads, along, read

    def _tests(self) -> list[Callable[[Atom], bool]]:
        return [
            lambda a: a.name not in self.read and a.name != self.along,
            lambda a: a.name == self.along,
            lambda a: a.name in self.read,
        ]

    def _view(self, tensor: Tensor) -> tuple[Tensor, list[int]]:
        names = self.block.parts[self.part]
        order = [k for test in self._tests() for k, a in enumerate(names) if test(a)]
        view = next(view for (view,), _, number in leaves(self.spec, self.block, tensor) if number == self.part)
        return view, order


@dataclass(frozen=True)
class Reader:
    """A weight that reads something, and its bias."""

    key: str
    """Of the element that moves both, where they have one."""
    weight: Rows
    bias: Rows
