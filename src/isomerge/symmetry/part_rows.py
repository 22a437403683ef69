"""Parts of weights and biases as matrices: their heads, an axis of each head, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Spec


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
        names = _names(self.spec, self.block, self.part)
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
        atoms = _names(self.spec, self.block, self.part)
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
        names = _names(self.spec, self.block, self.part)
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


def _names(spec: Spec, block: Block, part: int) -> tuple[Atom, ...]:
    """The atoms of a part of a block, in the order of its axes."""
    return block.parts[part]
