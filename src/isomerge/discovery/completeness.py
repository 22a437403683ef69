"""Whether a spec text misses symmetries: counted on a tiny random model, continuous ones and permutations.

Discrete symmetries do not show in the rank of a Jacobian. An axis that no output, no stream and no input meets must
have at least its permutations declared. Whether an axis is one is tried, whatever its name says: the outputs of one
module of a tiny random model are permuted together with what another one reads. A head `dense -> tanh -> out` whose
hidden axis is typed like the stream around it shows by this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.building import real_config
from isomerge.discovery.proving import PROVEN, BoundSpecimen, SpecOf
from isomerge.discovery.redundancy import MORE_HEADS, SIDE, TINY, TOKENS, WIDER, Count, Redundancy, tiny_specimen
from isomerge.discovery.specimen import Specimen
from isomerge.errors import IsomergeError
from isomerge.records import Record
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Line

TRIED = ("GL", "Scale", "PositiveScale", "SignedPerm", "Perm")
"""The largest one first; an element of the scales permutes as well."""
End = tuple[tuple[str, int], ...]
"""Stored tensors of one module, and the axis of each."""


class Completeness(Record):
    """What of a model's symmetries is declared, and what is not."""

    also = ("complete",)

    redundancy: Redundancy | None
    redundancy_note: str | None
    """Why the redundancy could not be counted; None where it was."""
    inner: tuple[InnerAxis, ...]

    @property
    def complete(self) -> bool | None:
        """Whether nothing is missing; None where that is not known."""
        if self.redundancy is None:
            return None
        return self.redundancy.complete and not self.inner

    @property
    def doubts(self) -> list[str]:
        """What a proof of all that is declared leaves open, in words."""
        if (count := self.redundancy) is None:
            return ["what is not declared was not counted"]
        missing, inner = count.true - count.declared, len(self.inner)
        return [
            *[f"{missing:,} dimension{'s' * (missing > 1)} not declared"] * bool(missing),
            *[f"{inner} inner ax{'es' if inner > 1 else 'is'} not declared"] * bool(inner),
            *["the count of what is not declared is not clear"] * (not count.clear),
        ]


def try_completeness(
    spec_of: SpecOf, config: Mapping[str, Any], specimen: Specimen | None = None, seed: int = 0
) -> Completeness:
    """Count what changes no output, and what of it the spec's groups explain.

    Args:
        spec_of: binds the spec to a config.
        config: the model's config.json; a tiny random model of its class is made.
        specimen: another model that stands for it, such as a module of one's own.
        seed: of the random weights.
    """
    if specimen is not None:
        return _counted(spec_of, lambda: specimen).named()
    real = real_config(config)
    counted = _counted(spec_of, lambda: tiny_specimen(real, seed, TINY))
    tiny = TINY
    for scale in (WIDER, MORE_HEADS):
        if counted.count is not None:
            break
        again = _counted(spec_of, lambda scale=scale: tiny_specimen(real, seed, scale))
        if again.count is not None:  # else the first one's reason is told: of the sizes that suit most
            counted, tiny = again, scale
    # two heads of half a stream span it together, as many heads never do
    others = (
        replace(tiny, heads=2 * tiny.heads, head=max(1, tiny.head // 2)),
        replace(tiny, vocabulary=TOKENS, side=SIDE),
    )
    for other, richer in enumerate(others, seed + 1):
        if counted.count is None or not counted.count.missing:
            break
        again = _counted(spec_of, lambda other=other, richer=richer: tiny_specimen(real, other, richer, cut=True))
        # at no point is less free than at a generic one: a unit that few inputs switch on only seems free
        if again.count is not None and again.count.missing < counted.count.missing:
            counted = again
    return counted.named()


@dataclass(frozen=True)
class _Counted:
    """What was counted at one specimen."""

    count: Count | None
    note: str | None
    inner: tuple[InnerAxis, ...]

    def named(self) -> Completeness:
        """With what is left by tensors."""
        return Completeness(None if self.count is None else self.count.named(), self.note, self.inner)


def _counted(spec_of: SpecOf, make: Callable[[], Specimen]) -> _Counted:
    """The count at a specimen; a note where there is none."""
    inner: tuple[InnerAxis, ...] = ()
    try:
        specimen = make()
        specimen.compare_whole()
        seen = BoundSpecimen(spec_of, specimen)
        inner = tuple(inner_axes(seen))
        return _Counted(Count(seen), None, inner)
    except IsomergeError as error:
        return _Counted(None, str(error), inner)


class InnerAxis(Record):
    """An axis of its own between two modules, and the largest group that leaves all outputs as they are."""

    writer: str
    reader: str
    size: int
    group: str


def inner_axes(seen: BoundSpecimen) -> list[InnerAxis]:
    """The inner axes of a specimen on which no declared space acts."""
    axes = []
    for writer, reader, size in _candidates(seen):
        group = next((g for g in TRIED if _holds(seen, writer, reader, size, g)), None)
        if group is not None:
            axes.append(InnerAxis(_name(seen, writer), _name(seen, reader), size, group))
    return axes


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
