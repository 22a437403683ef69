"""Layers that run again and again, whose first run reads what no norm gave, in the blocks of a model (ALBERT).

Of a stream that begins as ``P e + c``, and that every later run reads as ``g n + d``, n having the mean zero,
readers may be ``W (1 + a 1 u^T)`` with ``b - a W 1 (u d)``, u being 1 / g: of the norm, ``u (g n + d)`` is the
constant ``u d``. For the first run the stream begins as ``(1 - t 1 u^T) P`` and ``c + t 1 (u d - u c)``, with
``t = a / (1 + a sum(u))``, which undoes it: but for something along the ones, which the next norm takes away. So
one number is free, the factor ``f = 1 + a sum(u)`` by which readers have more of the ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.reaches import Reach
from isomerge.symmetry.part_rows import Reader
from isomerge.symmetry.probed import TURN, Moves

LEVEL = 1e-9
"""The least part of the reciprocals of gains that must lie along the ones, and of what the first run reads along
them."""
ALIKE = 0.5
"""The least squared cosine between what two models' maps give along ``u`` for one to be brought to the other's."""


@dataclass(frozen=True)
class Rerun:
    """What a stream begins with, the norm that it is read through in every later run, and who reads it."""

    reach: Reach
    bias: Block
    through: Block
    gain: Block | None
    """Of the norm before the map."""
    norm: Block
    """The gain of the norm that later runs read."""
    shift: Block | None
    """Its bias."""
    readers: tuple[Reader, ...]

    @property
    def blocks(self) -> list[Block]:
        """All that moves change and look at."""
        own = [block for block in (self.gain, self.norm, self.shift) if block is not None]
        return list(dict.fromkeys([*own, *self.changed]))

    @property
    def changed(self) -> list[Block]:
        """All that moves change."""
        readers = (block for one in self.readers for block in (one.weight.block, one.bias.block))
        return list(dict.fromkeys([self.bias, self.through, *readers]))

    @property
    def element_keys(self) -> list[str]:
        """Of its one element, the factor [1, 1]."""
        return [TURN + self.reach.name]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        """The blocks that an element changes, changed; the given ones stay."""
        u, factor = self._along(tensors), element.double().reshape(())
        more = (factor - 1) / u.sum()
        level = torch.zeros_like(more) if self.shift is None else u @ tensors[self.shift].double()
        through, bias = tensors[self.through], tensors[self.bias]
        less, found = more / factor, dict(tensors)
        found[self.through] = (through.double() - less * (u @ through.double())).to(through)
        found[self.bias] = (bias.double() + less * (level - u @ bias.double())).to(bias)
        for one in self.readers:
            read = more * one.weight.of(tensors).sum(-1, keepdim=True)
            found[one.weight.block] = one.weight.plus(found, read * u)
            found[one.bias.block] = one.bias.plus(found, -read * level)
        return {block: found[block] for block in self.changed}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings the map along u nearest to a target's, where they are alike; None: to the size that it has on
        average across the ones, its largest number positive."""
        seen = self._seen(tensors)
        if target is None:
            wide = self._across(tensors).square().mean().sqrt() * self._along(tensors).norm()
            size = wide * seen.numel() ** 0.5 / seen.norm()
            return {self.element_keys[0]: (1 / (size * seen[seen.abs().argmax()].sign())).reshape(1, 1)}
        theirs = self._seen(target)
        if not _are_alike(seen, theirs):
            return {self.element_keys[0]: torch.ones(1, 1, dtype=seen.dtype)}
        return {self.element_keys[0]: (seen.square().sum() / (seen @ theirs)).reshape(1, 1)}

    def formed(self, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks where the factor is what `onto` makes it without a target."""
        ((key, element),) = self.onto(tensors, None).items()
        return self.moved(key, element, dict(tensors))

    def is_told(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether the norm's gains leave something along the ones, and the first run reads something along u."""
        u, across = self._along(tensors), self._across(tensors)
        if not bool(u.isfinite().all()) or float(u.sum().abs()) <= LEVEL * float(u.abs().sum()):
            return False
        return float(self._seen(tensors).norm()) > LEVEL * float(u.norm() * across.norm()) > 0

    def shape(self, key: str) -> tuple[int, ...]:
        """That of an element."""
        return (1, 1)

    def slack(self, free: Collection[Block]) -> bool:
        """Whether a part of it counts elsewhere: no."""
        return False

    def dimension(self, slack: bool) -> int:
        """How many numbers are free."""
        return 1

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far the map along u is from a target's that is alike, squared and relative to it."""
        mine, theirs = self._seen(tensors), self._seen(target)
        if not _are_alike(mine, theirs):
            return 0.0
        return float((mine - theirs).square().sum() / theirs.square().sum())

    def _along(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """The reciprocals u of the norm's gains [width]; float64."""
        return (tensors[self.norm].double() + self.norm.line.less).reciprocal()

    def _reached(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What the map makes of what the norm before it gives, of mean zero [width, narrow]; float64."""
        through = tensors[self.through].double()
        if self.gain is None:
            return through
        through = through * (tensors[self.gain].double() + self.gain.line.less)
        return through - through.mean(1, keepdim=True)

    def _seen(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What of it lies along u [narrow]."""
        return self._along(tensors) @ self._reached(tensors)

    def _across(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What of it no factor changes: all but what lies along the ones [width, narrow]."""
        reached = self._reached(tensors)
        return reached - reached.mean(0)


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two vectors lie along one line, more or less."""
    return float((one @ other).square()) > ALIKE * float(one.square().sum() * other.square().sum())
