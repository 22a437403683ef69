"""Biases that are not stored: what a reader without one makes of its norm's bias, where a shift leaves it free.

``W b`` is a bias by another name (`isomerge.symmetry.norm_stage`). Where a spec has a shift of the bias that a
reader would have, such as a key's, which softmax drops, or a value's, which passes on to the output's, it moves
``W b``: the reader takes against the ones of the norm what that asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import projection


@dataclass(frozen=True)
class UnstoredBias:
    """The part of a reader of which the bias, were it stored, would be free."""

    reader: Block
    axis: int
    """Of the reader, along the stream."""
    part: int
    """The number of the part of a concatenation."""
    spec: Spec
    via: Block | None = None
    into: Block | None = None
    """The bias that pays for it, and the map through which; None where nothing does."""

    @property
    def streams(self) -> frozenset[str]:
        """The names of the atoms along the stream."""
        return self.reader.names_by_axis[self.axis]

    def rows(self, weight: Tensor) -> Tensor:
        """Which of a reader's rows it is: bool, of the weight's shape, 1 long along the stream."""
        rows = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
        for (view,), _, number in leaves(self.spec, self.reader, rows):
            if number == self.part:
                view.fill_(True)
        return rows.narrow(self.axis, 0, 1)

    def through(self, delta: Tensor, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What a bias adds to the output: float64, of the shape of ``into``.

        Args:
            delta: the bias, of the reader's shape, 1 long along the stream.
            tensors: with ``via`` and ``into``.
        """
        assert self.into is not None
        w, vector = self.map(delta, tensors)
        return (w @ vector).reshape(tensors[self.into].shape)

    def map(self, delta: Tensor, tensors: Mapping[Block, Tensor]) -> tuple[Tensor, Tensor]:
        """The map of a bias to the output's [outputs, entries], and a bias as a vector that it maps; float64."""
        assert self.via is not None
        assert self.into is not None
        view, names = self._view(delta)
        return projection(
            self.spec, self.via, tensors[self.via].double(), names, self.into
        ), view.double().flatten()

    def spread(self, vector: Tensor, weight: Tensor) -> Tensor:
        """The inverse of what `map` makes a vector: of the weight's shape, 1 long along the stream."""
        whole = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device)
        for (view,), names, number in leaves(self.spec, self.reader, whole):
            if number == self.part:
                kept = [n if a.name not in self.streams else 1 for a, n in zip(names, view.shape, strict=True)]
                view.copy_(vector.reshape(kept).expand(view.shape))
        return whole.narrow(self.axis, 0, 1)

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        named = self.reader.parts[self.part]
        return prod(self.spec.sizes.get(a.name, 1) for a in named if a.name not in self.streams)

    def _view(self, delta: Tensor) -> tuple[Tensor, tuple[Atom, ...]]:
        """A bias with its atoms as axes, without those of the stream."""
        width = prod(self.spec.sizes.get(name, 1) for name in self.streams)
        whole = delta.expand([width if k == self.axis else n for k, n in enumerate(delta.shape)]).contiguous()
        for (view,), names, number in leaves(self.spec, self.reader, whole):
            if number == self.part:
                first = view[tuple(0 if a.name in self.streams else slice(None) for a in names)]
                return first, tuple(a for a in names if a.name not in self.streams)
        raise AssertionError(f"{self.reader.key} has no part {self.part}")


def bias_of(weight: str) -> str:
    """What the bias beside a weight or a gain is called: ``q.bias`` of ``q.weight``, and of a parameter ``q``;
    ``n.beta`` of ``n.gamma``."""
    if weight.endswith("gamma"):
        return weight.removesuffix("gamma") + "beta"
    return weight.removesuffix("weight") + "bias" if weight.endswith("weight") else f"{weight}.bias"


def unstored_biases(spec: Spec, readers: Mapping[Block, int], blocks: Sequence[Block]) -> list[UnstoredBias]:
    """The free biases of readers that have none.

    Args:
        spec: whose shifts say what is free.
        readers: by their axis along the stream.
        blocks: among which those are that pay.
    """
    if not spec.shifts or not readers:
        return []
    there = {(block.line.name, block.scope): block for block in blocks}
    biases: list[UnstoredBias] = []
    for shift in spec.shifts:
        whole = not shift.trades and shift.along is None
        for reader, axis in readers.items() if whole else ():
            if shift.bias != bias_of(reader.line.name) or reader.lead:
                continue
            paid = [there.get((name, reader.scope)) for name in (shift.via, shift.into) if name is not None]
            if None not in paid:
                biases.append(UnstoredBias(reader, axis, shift.block or 0, spec, *paid))
    return biases
