"""Weights of which the direction alone counts, in the blocks of a model: the length of each slice stands in another
tensor, ``w = g v / |v|`` (weight normalisation, Salimans & Kingma 2016). So ``|v|`` may be anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from isomerge.symmetry.axes import atoms
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.reaches import Length
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.probed import Moves

LENGTH = "norm.length."
"""What the keys of their elements begin with."""
LEAST = 1e-9
"""The least part of the longest slice that has a direction."""


@dataclass(frozen=True)
class Lengths:
    """A weight whose slices' lengths are free, and the tensor that has them."""

    length: Length
    weight: Block
    stored: Block
    spec: Spec

    @property
    def blocks(self) -> list[Block]:
        """All that moves change and look at."""
        return [self.weight, self.stored]

    @property
    def changed(self) -> list[Block]:
        """All that moves change."""
        return [self.weight]

    @property
    def element_keys(self) -> list[str]:
        """Of the one element: the logarithms of what slices are multiplied by, [slices]."""
        return [LENGTH + self.length.name]

    @property
    def _axis(self) -> int:
        axes = enumerate(self.weight.axes or ())
        return next(k for k, axis in axes if any(a.name == self.length.along for a in atoms((axis,))))

    def _sizes(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """The lengths of all slices, [slices]; float64."""
        return tensors[self.weight].double().movedim(self._axis, 0).flatten(1).norm(dim=1)

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        """The blocks that an element changes, changed; the given ones stay."""
        weight = tensors[self.weight]
        factor = element.double().exp().reshape([-1 if k == self._axis else 1 for k in range(weight.ndim)])
        return {self.weight: (weight.double() * factor).to(weight)}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What gives slices a target's lengths; None: those that are stored for them."""
        wanted = self._sizes(target) if target is not None else tensors[self.stored].double().abs().flatten()
        return {self.element_keys[0]: (wanted / self._sizes(tensors)).log()}

    def formed(self, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks where lengths are what `onto` makes them without a target."""
        (key, element), *_ = self.onto(tensors, None).items()
        return self.moved(key, element, dict(tensors))

    def is_told(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether every slice has a direction, and a length."""
        found = (self._sizes(tensors), tensors[self.stored].double().abs().flatten())
        return all(bool((sizes > LEAST * sizes.max()).all()) for sizes in found)

    def shape(self, key: str) -> tuple[int, ...]:
        """That of an element."""
        return (self.spec.sizes[self.length.along],)

    def slack(self, free: Collection[Block]) -> bool:
        """Whether it is among the readers of a norm that may take what they like against the ones: never."""
        return False

    def dimension(self, slack: bool) -> int:
        """How many numbers are free."""
        return self.spec.sizes[self.length.along]

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far lengths are from a target's, squared and relative to them."""
        theirs = self._sizes(target)
        return float((self._sizes(tensors) - theirs).square().sum()) / max(float(theirs.square().sum()), 1e-300)


def lengths_in(spec: Spec, blocks: Collection[Block]) -> list[Lengths]:
    """The statements of a spec of which both tensors are among some blocks."""
    found = []
    for length in spec.lengths:
        weight, stored = (
            next((b for b in blocks if not b.lead and part.is_of(b.canonical[0])), None) for part in length.parts
        )
        if weight is not None and stored is not None:
            found.append(Lengths(length, weight, stored, spec))
    return found
