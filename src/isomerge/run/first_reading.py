"""The first reading of stored tensors that nothing moves: beside what is done with their pieces, each is read once.

A tensor that is larger than the cache comes from memory for every pass over it, and is widened from half precision
each time: checksums, the look for what is not finite and the distances of a report need no passes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor
from zlib_ng.zlib_ng import crc32

from isomerge.checkpoint.stored_tensor import as_tensor, content_of
from isomerge.matching.distances import is_half, square_of
from isomerge.models.recognised import Model
from isomerge.pieces import PIECE, Places, all_finite, pieces, wide_dtype
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

FirstReadings = Mapping[Block, "FirstReading"]
"""Of the blocks of a unit that can be read so."""


def first_readings(unit: Unit, models: Sequence[Model]) -> FirstReadings:
    """Of those blocks of a unit that are one floating-point tensor in a file of every model, as it is; the anchor
    comes first.

    Raises:
        IsomergeError: a file that changed or cannot be read.
    """
    readings = {}
    for block in unit.blocks:
        names = [name for model in models for name in model.stored_names(block)]
        if block.lead or block.line.infinite or len(names) != len(models):
            continue
        infos = [model.checkpoint.tensors[name] for model, name in zip(models, names, strict=True)]
        pages = [model.checkpoint.pages(name) for model, name in zip(models, names, strict=True)]
        tensors = [as_tensor(x, info) for x, info in zip(pages, infos, strict=True) if x is not None]
        if len(tensors) == len(models) and all(t.is_floating_point() for t in tensors):
            readings[block] = FirstReading(models, names, tensors)
    return readings


class FirstReading:
    """One block of several models in pages of their files, not read yet: use ``tensors`` after `read`, or through
    `pieces`.

    Args:
        models: the anchor first.
        names: of the stored tensor in each model.
        tensors: of one shape, floating point.
    """

    def __init__(self, models: Sequence[Model], names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self.models, self.names, self.tensors = models, names, tensors
        self._squares: list[tuple[float, float]] | None = None

    def pieces(
        self, tensors: Sequence[Tensor], out: Tensor | Places, dtype: torch.dtype
    ) -> Iterator[tuple[list[Tensor], Tensor]]:
        """As `isomerge.pieces.pieces` of ``tensors``, all of this block's in any order, which are read by the way.

        Raises:
            IsomergeError: NaN or infinite values, before their piece is given.
        """
        order = [next(k for k, t in enumerate(tensors) if t is x) for x in self.tensors]
        sight = _Sight(self, order)
        yield from pieces(tensors, out, dtype, sight.see)
        self._take(sight)

    def read(self) -> None:
        """Read all, if it is not read yet. Raises IsomergeError for NaN or infinite values."""
        if self._squares is not None:
            return
        sight, wide = _Sight(self, range(len(self.tensors))), wide_dtype(self.tensors)
        for parts in zip(*(t.reshape(-1).split(PIECE) for t in self.tensors), strict=True):
            sight.see(parts, [part.to(wide) for part in parts])
        self._take(sight)

    @property
    def squares(self) -> list[tuple[float, float]]:
        """For every model but the anchor: its squared distance from the anchor, and the anchor's squared norm."""
        self.read()
        assert self._squares is not None
        return self._squares

    def refuse(self, stored: Sequence[Tensor]) -> None:
        """Raises IsomergeError, naming the tensor, if a piece of any model is not finite."""
        for model, name, part in zip(self.models, self.names, stored, strict=True):
            if not all_finite(part):
                raise model.damaged(name)

    def _take(self, sight: _Sight) -> None:
        self._squares = [(gap, sight.norm) for gap in sight.gaps]
        for model, name, crc in zip(self.models, self.names, sight.sums, strict=True):
            if crc is not None:
                model.checkpoint.summed(name, crc)


class _Sight:
    """What is known of a block's tensors up to some piece; ``order`` has the place of every model among what `see`
    is given."""

    def __init__(self, reading: FirstReading, order: Sequence[int]) -> None:
        self.reading, self.order = reading, order
        files = zip(reading.models, reading.names, strict=True)
        self.sums = [None if model.checkpoint.is_summed(name) else 0 for model, name in files]
        """Of each model's tensor, None where its checksum is known."""
        self.gaps, self.norm = [0.0] * (len(order) - 1), 0.0
        self._room: Tensor | None = None

    def see(self, stored: Sequence[Tensor], wide: Sequence[Tensor]) -> None:
        """One piece of every model, as it is stored and as it is computed with; raises IsomergeError if one is not
        finite."""
        stored, wide = [stored[k] for k in self.order], [wide[k] for k in self.order]
        self.sums = [
            None if crc is None else crc32(content_of(part), crc)
            for part, crc in zip(stored, self.sums, strict=True)
        ]
        half = [is_half(part) for part in stored]
        norm = square_of(wide[0], exact=not half[0])
        gaps = [
            square_of(self._difference(wide[0], x), exact=not (half[0] and is_narrow))
            for x, is_narrow in zip(wide[1:], half[1:], strict=True)
        ]
        if not all(map(isfinite, [norm, *gaps])):
            self.reading.refuse(stored)
        self.norm += norm
        self.gaps = [gap + more for gap, more in zip(self.gaps, gaps, strict=True)]

    def _difference(self, x: Tensor, y: Tensor) -> Tensor:
        """In the same room each time, which is in the cache."""

        if self._room is None:
            self._room = torch.empty_like(x)
        return torch.sub(x, y, out=self._room[: len(x)])
