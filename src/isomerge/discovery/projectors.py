"""Projectors: two matrices of one module outside the layers, with hidden neurons between them, as wide as they
like.

Between a tower of images and a language model they are often as wide as one of the two, so that a length does not
tell them from a stream; what one matrix writes and the next one reads does.
"""

from __future__ import annotations

from collections.abc import Iterator

from isomerge.discovery.draft import Draft
from isomerge.discovery.head_chunks import bias_of
from isomerge.discovery.lines import LineFound, expression
from isomerge.discovery.neurons import Neurons, NeuronsAttempt, Place
from isomerge.discovery.proving import Court


def prove_projectors(draft: Draft, court: Court) -> Draft:
    """The draft with the neurons between two matrices of one module outside the layers, where the law proves
    them."""
    first, second = (s.keys for s in court.specimens)
    for group in _pairs(draft):
        size = expression(group.lengths, first, second)
        if size is not None and all(draft.free(*place) for place in group.places):
            draft = NeuronsAttempt(draft, court, group, size, outside=False).prove()
    return draft


def _pairs(draft: Draft) -> Iterator[Neurons]:
    """What one matrix writes and another one of its parent module may read."""
    matrices = [line for line in draft.lines if not line.layered and line.uniform and len(line.shapes[0]) == 2]
    for writer in matrices:
        for reader in matrices:
            if writer is reader or writer.out is None or _parent(writer) != _parent(reader) or not _parent(writer):
                continue
            axis = 1 - (reader.out or 0)
            lengths = writer.lengths(writer.out)
            if reader.lengths(axis) != lengths or lengths[0] == lengths[1]:
                continue
            bias = bias_of(writer, list(draft.lines))
            places: list[Place] = [(writer, writer.out), (reader, axis)]
            yield Neurons(lengths, (*places, *([(bias, 0)] if bias is not None else [])))


def _parent(line: LineFound) -> str:
    return line.module.rpartition(".")[0]
