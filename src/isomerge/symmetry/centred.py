"""What LayerNorms over the coordinates of a head take away, in the blocks of a model.

A norm of queries or keys that takes their mean (`isomerge.symmetry.language.statements`) hears nothing of what is
written along the ones of a head: ``W + 1 c^T`` and ``b + 1 a``, for each head, of all its parts together. What else
moves biases takes W with it: so they follow at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.statements import HeadNorm, Normed
from isomerge.symmetry.stated import Moves, Named, Statement, beyond

CENTRED, OFFSET = "norm.centred.", "norm.offset."
"""What the keys of their elements begin with: of weights, and of biases."""


@dataclass(frozen=True)
class Centred(Statement):
    """A tensor of which a norm takes the mean over a head's coordinates."""

    key: str
    norm: str
    """What the statement is called."""
    block: Block
    parts: tuple[int, ...]
    over: frozenset[str]
    spec: Spec

    @property
    def blocks(self) -> list[Block]:
        return [self.block]

    @property
    def element_keys(self) -> list[str]:
        return [self.key]

    def mean(self, tensor: Tensor) -> Tensor:
        """What the block has along the ones of every head, of an element's shape; float64."""
        whole = torch.zeros(self.shape(self.key), dtype=torch.float64, device=tensor.device)
        for view, axes in self._views(tensor):
            whole = whole + view.double().sum(axes)
        return whole / self._coordinates

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        moved = tensors[self.block].clone()
        for view, axes in self._views(moved):
            more = element.to(view)
            for axis in axes:
                more = more.unsqueeze(axis)
            view += more
        return {self.block: moved}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings a weight to a target's along the ones; None: it, or a bias, to none."""
        gap = -self.mean(tensors[self.block])
        if target is None:
            return {self.key: gap}
        return {} if self.follows else {self.key: gap + self.mean(target[self.block])}

    @property
    def follows(self) -> bool:
        """Whether it is a bias."""
        return self.key.startswith(OFFSET)

    def drops(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> Moves:
        """What brings a bias to a target's along the ones."""
        gap = self.mean(target[self.block]) - self.mean(tensors[self.block])
        return {self.key: gap} if self.follows else {}

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Always."""
        return True

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._size(a) for a in self._atoms[0] if a.name not in self.over)

    def slack(self, free: Collection[Block]) -> bool:
        """Whether it is a reader that may take what it likes against the ones of its stream: that counts there."""
        return self.block in free

    def dimension(self, slack: bool) -> int:
        whole = prod(self.shape(self.key))
        width = prod(self._size(a) for a in self._atoms[0] if a.name in self.spec.streams)
        return whole - (whole // width if slack else 0)

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """What lies along the ones of the squared distance to a target's, more than chance would have it."""
        mine, theirs = tensors[self.block], target[self.block]
        gap = sum(
            float((b.double() - a.double()).square().sum())
            for (a, _), (b, _) in zip(self._views(mine), self._views(theirs), strict=True)
        )
        along = float((self.mean(theirs) - self.mean(mine)).square().sum()) * self._coordinates
        return beyond(along / max(gap, 1e-300), 1 / self._coordinates)

    @property
    def _atoms(self) -> list[tuple[Atom, ...]]:
        leaf = self.block.parts
        return [tuple(leaf[part]) for part in self.parts]

    @property
    def _coordinates(self) -> int:
        """How many a head has."""
        return sum(prod(self._size(a) for a in atoms if a.name in self.over) for atoms in self._atoms)

    def _size(self, atom: Atom) -> int:
        return int(atom.name) if atom.name.isdigit() else self.spec.sizes[atom.name]

    def _views(self, tensor: Tensor) -> Iterator[tuple[Tensor, list[int]]]:
        """The parts, and the axes of each that are normed."""
        for (view,), atoms, number in leaves(self.spec, self.block, tensor):
            if number in self.parts:
                yield view, [k for k, a in enumerate(atoms) if a.name in self.over]


def centred_in(spec: Spec, named: Named) -> list[Centred]:
    """What norms over heads take away among some blocks.

    Args:
        spec: whose statements are read.
        named: the blocks of a model, or of one unit.
    """
    return [
        _centred(spec, norm, number, line, block, at)
        for norm in spec.head_norms
        for number, line in enumerate(norm.lines)
        for at, block in named.every(line)
    ]


def _centred(spec: Spec, norm: HeadNorm, number: int, line: Normed, block: Block, at: Mapping[str, int]) -> Centred:
    leaf = block.parts
    parts = tuple(part for part in line.parts if part < len(leaf))  # a part of length zero is left out
    reads = any(a.name in spec.streams for a in leaf[parts[0]])
    key = ElementKey.at(f"{CENTRED if reads else OFFSET}{norm.name}.{number}", at.values())
    return Centred(key, norm.name, block, parts, norm.over, spec)
