"""Weights of which the direction alone counts, in the blocks of a model. So ``|v|`` may be anything.

The length of each slice stands in another tensor, ``w = g v / |v|`` (weight normalisation, Salimans & Kingma 2016),
or what the whole weight writes is scaled to some length afterwards (copies of a stream, as long as the first one).
Such scaling has a bound (Gemma 3n: mean squares of at least 1e-5), so that of a very short weight it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.statements import Length
from isomerge.symmetry.stated import Moves, Named, Statement, beyond

LENGTH = "norm.length."
"""What the keys of their elements begin with."""
LEAST = 1e-9
"""The least part of the longest slice that has a direction."""


@dataclass(frozen=True)
class Lengths(Statement):
    """A weight whose slices' lengths are free, and the tensor that has them; the whole weight, where none has."""

    length: Length
    weight: Block
    stored: Block | None
    at: tuple[int, ...]
    """The numbers in the weight's name."""
    spec: Spec

    @property
    def blocks(self) -> list[Block]:
        return self.changed if self.stored is None else [self.weight, self.stored]

    @property
    def changed(self) -> list[Block]:
        return [self.weight]

    @property
    def element_keys(self) -> list[str]:
        """Of the one element: the logarithms of what slices are multiplied by, [slices]."""
        return [ElementKey.at(LENGTH + self.length.name, self.at)]

    @property
    def _axis(self) -> int | None:
        """The axis of the slices; none of a weight that is one."""
        along = self.length.along
        return self.weight.axis_of(along) if along in self.weight.names else None

    def _sizes(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """The lengths of all slices, [slices]; float64."""
        weight, axis = tensors[self.weight].double(), self._axis
        return (weight.unsqueeze(0) if axis is None else weight.movedim(axis, 0)).flatten(1).norm(dim=1)

    def _wanted(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """The lengths that slices have in the form, [slices]: those that are stored for them, or what makes all
        that the weight writes as long, in the mean, as what it reads."""
        if self.stored is not None:
            return tensors[self.stored].double().abs().flatten()
        weight = tensors[self.weight]
        return weight.new_full((1,), weight.shape[0], dtype=weight.double().dtype).sqrt()

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        weight = tensors[self.weight]
        factor = element.double().exp().reshape([-1 if k == self._axis else 1 for k in range(weight.ndim)])
        return {self.weight: (weight.double() * factor).to(weight)}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What gives slices a target's lengths; None: those of the form."""
        wanted = self._sizes(target) if target is not None else self._wanted(tensors)
        return {self.element_keys[0]: (wanted / self._sizes(tensors)).log()}

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether every slice has a direction, and a length; and a whole weight is not so short that what it writes
        may be scaled otherwise."""
        sizes, wanted = self._sizes(tensors), self._wanted(tensors)
        if self.stored is None:
            return bool((sizes.square() > self.length.least * wanted.square()).all())
        return all(bool((each > LEAST * each.max()).all()) for each in (sizes, wanted))

    def shape(self, key: str) -> tuple[int, ...]:
        return (1 if self.length.along is None else self.spec.sizes[self.length.along],)

    def dimension(self, slack: bool) -> int:
        return self.shape("")[0]

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far lengths that are stored elsewhere are from a target's, squared and relative to them; of a whole
        weight, what of the squared distance to a target's is its length, more than chance would have it."""
        mine, theirs = self._sizes(tensors), self._sizes(target)
        if self.stored is not None:
            return float((mine - theirs).square().sum()) / max(float(theirs.square().sum()), 1e-300)
        x, y = tensors[self.weight].double(), target[self.weight].double()
        before, after = (float((y - f * x).square().sum()) for f in (1.0, theirs / mine))
        return beyond(1 - after / max(before, 1e-300), 1 / x.numel())


def lengths_in(spec: Spec, named: Named) -> list[Lengths]:
    """The statements of a spec of which all tensors are among some blocks, once for each number of the weight's
    name."""
    lengths: list[Lengths] = []
    for length in spec.lengths:
        for at, weight in named.every(length.weight):
            stored = named.at(length.stored, at)
            if length.stored is None or stored is not None:
                lengths.append(Lengths(length, weight, stored, tuple(at.values()), spec))
    return lengths
