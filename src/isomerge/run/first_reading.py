"""The first reading of stored tensors that nothing moves: beside what is done with their pieces, each is read once.

Checksums, the look for what is not finite and the distances of a report need no passes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from zlib_ng.zlib_ng import crc32

from isomerge.checkpoint.stored_tensor import as_tensor, content_of
from isomerge.models.recognised import Model
from isomerge.passes import Pass
from isomerge.pieces import wide_dtype
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
    `reading`.

    Args:
        models: the anchor first.
        names: of the stored tensor in each model.
        tensors: of one shape, floating point.
    """

    def __init__(self, models: Sequence[Model], names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self.models, self.names, self.tensors = models, names, tensors
        self._squares: list[tuple[float, float]] | None = None
        self._order: list[int] = []
        """The place of every model in the pass under way."""
        self._crcs: list[int | None] = []
        """Of every model's tensor so far; None where it is known."""

    def reading(self, tensors: Sequence[Tensor], wide: torch.dtype) -> Pass:
        """A pass over ``tensors``, all of this block's in any order, which is given to `took` after its run; that
        raises IsomergeError for NaN or infinite values before they are computed with."""
        self._order = order = [next(k for k, t in enumerate(tensors) if t is x) for x in self.tensors]
        files = list(zip(self.models, self.names, strict=True))
        self._crcs = [None if model.checkpoint.is_summed(name) else 0 for model, name in files]

        def see(stored: Sequence[Tensor], finite: Sequence[bool]) -> None:
            for k, (model, name) in enumerate(files):
                if not finite[order[k]]:
                    raise model.damaged(name)
                if (crc := self._crcs[k]) is not None:
                    self._crcs[k] = crc32(content_of(stored[order[k]]), crc)

        return Pass(tensors, wide, anchor=order[0], seen=see)

    def took(self, reading: Pass) -> None:
        """Keep what a pass has told of the tensors."""
        norm = reading.sums[self._order[0]].square
        self._squares = [(reading.sums[k].gap, norm) for k in self._order[1:]]
        for model, name, crc in zip(self.models, self.names, self._crcs, strict=True):
            if crc is not None:
                model.checkpoint.summed(name, crc)

    def read(self) -> None:
        """Read all, if it is not read yet. Raises IsomergeError for NaN or infinite values."""
        if self._squares is None:
            reading = self.reading(self.tensors, wide_dtype(self.tensors))
            reading.run()
            self.took(reading)

    @property
    def squares(self) -> list[tuple[float, float]]:
        """For every model but the anchor: its squared distance from the anchor, and the anchor's squared norm."""
        self.read()
        assert self._squares is not None
        return self._squares
