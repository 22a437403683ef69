"""Inner axes without a declared discrete group: what one module writes and another alone reads.

Discrete symmetries do not show in the rank of a Jacobian. An axis that no output, no stream and no input meets must
have at least its permutations declared. Whether an axis is one is tried, whatever its name says: the outputs of one
module of a tiny random model are permuted together with what another one reads. A head `dense -> tanh -> out` whose
hidden axis is typed like the stream around it shows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.bound_specimen import BoundSpecimen
from isomerge.discovery.proving import PROVEN
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Line

TRIED = ("GL", "Scale", "PositiveScale", "SignedPerm", "Perm")
"""The largest one first; an element of the scales permutes as well."""


@dataclass(frozen=True)
class InnerAxis:
    """An axis of its own between two modules, and the largest group that leaves all outputs as they are."""

    writer: str
    reader: str
    size: int
    group: str

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"writer": self.writer, "reader": self.reader, "size": self.size, "group": self.group}


def inner_axes(seen: BoundSpecimen) -> list[InnerAxis]:
    """The inner axes of a specimen on which no declared space acts."""
    axes = []
    for writer, reader, size in _candidates(seen):
        group = next((g for g in TRIED if _holds(seen, writer, reader, size, g)), None)
        if group is not None:
            axes.append(InnerAxis(_name(seen, writer), _name(seen, reader), size, group))
    return axes


End = tuple[tuple[str, int], ...]
"""Stored tensors of one module, and the axis of each."""


def _candidates(seen: BoundSpecimen) -> Iterator[tuple[End, End, int]]:
    """What a module writes and another may read, of one length: matrices and their biases, in one layer."""
    writers, readers = _ends(seen, dual=False), _ends(seen, dual=True)
    for (scope, _), writer in writers.items():
        for (other, _), reader in readers.items():
            size = _length(seen, writer)
            apart = not {n for n, _ in writer} & {n for n, _ in reader}
            if scope == other and apart and size > 1 and size == _length(seen, reader):
                yield writer, reader, size


def _ends(seen: BoundSpecimen, dual: bool) -> dict[tuple[Any, str], End]:
    """By layer and module, the axes of atoms without a group of their own: those written, or those read."""
    by_module: dict[tuple[Any, str], list[tuple[str, int]]] = {}
    for stored, match in seen.matches.items():
        axes = match.line.axes or ()
        shape = seen.specimen.stored[stored].shape
        if len(axes) != len(shape) or not seen.specimen.stored[stored].is_floating_point():
            continue
        for k, axis in enumerate(axes):
            if not isinstance(axis, Atom) or (len(shape) == 1 and (dual or axis.diag)):
                continue
            stream = axis.name in seen.spec.streams
            if axis.name in seen.spec.spaces and not stream:
                continue  # a declared space acts on it
            if dual == (axis.dual if stream or len(shape) == 1 else k > 0):
                key = (tuple(match.binding.items()), match.canonical.rpartition(".")[0])
                by_module.setdefault(key, []).append((stored, k))
    whole = {key: tuple(ends) for key, ends in by_module.items()}
    return {k: e for k, e in whole.items() if any(len(seen.specimen.stored[n].shape) > 1 for n, _ in e)}


def _length(seen: BoundSpecimen, end: End) -> int:
    lengths = {seen.specimen.stored[n].shape[k] for n, k in end}
    return lengths.pop() if len(lengths) == 1 else 0


def _holds(seen: BoundSpecimen, writer: End, reader: End, size: int, group: str) -> bool:
    """Whether an element of a group leaves all outputs as they are, and its own half does not."""
    rng = torch.Generator().manual_seed(size)
    there = torch.eye(size, dtype=torch.float64).roll(1, 0)
    if group == "GL":
        there = there + 0.3 * torch.randn(size, size, generator=rng, dtype=torch.float64)
    if group in ("SignedPerm", "Scale"):
        there[::2] *= -1
    if group in ("PositiveScale", "Scale"):
        there = there * (0.5 + torch.rand(size, 1, generator=rng, dtype=torch.float64))
    moved = _moved(seen, writer, there)
    whole = moved | _moved(seen, reader, torch.linalg.inv(there).mT)
    return seen.specimen.change(whole) < PROVEN <= seen.specimen.change(moved)


def _moved(seen: BoundSpecimen, end: End, matrix: Tensor) -> dict[str, Tensor]:
    stored = seen.specimen.stored
    return {n: (stored[n].movedim(k, -1) @ matrix.mT).movedim(-1, k).contiguous() for n, k in end}


def _name(seen: BoundSpecimen, end: End) -> str:
    line: Line = seen.matches[end[0][0]].line
    return line.name.rpartition(".")[0] or line.name
