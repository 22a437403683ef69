"""Neurons and experts: axes that some matrices of a layer write and others read, told by their length.

Projectors are two matrices of one module outside the layers, with hidden neurons between them. Between a tower of
images and a language model these are often as wide as one of the two, so that a length does not tell them from a
stream; what one matrix writes and the next one reads does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.head_chunks import bias_of
from isomerge.discovery.lines import EXPERT, LineFound, Place, expression
from isomerge.discovery.proving import PROVEN, Court
from isomerge.symmetry.language.expressions import evaluate


@dataclass(frozen=True)
class Neurons:
    """The places of one length in one stack or module: where neurons are written and where they are read."""

    lengths: tuple[int, int]
    places: tuple[Place, ...]

    def written(self) -> list[Place]:
        """Axes of matrices that are written, of this length or twice it."""
        return [(line, a) for line, a in self.places if len(line.shapes[0]) > 1 and a == self.out(line)]

    def read(self) -> list[Place]:
        """Axes of matrices that are read."""
        return [(line, a) for line, a in self.places if len(line.shapes[0]) > 1 and a != self.out(line)]

    def out(self, line: LineFound) -> int | None:
        """Which axis a matrix writes; of fused experts, whose class does not say, the one that is twice as long, or
        the only one of the two kinds that is left."""
        if len(line.shapes[0]) == 2 and line.last.endswith("bias"):  # of fused experts: one row each
            return 1
        if line.out is not None:
            return line.out
        twice = [a for a, n in enumerate(line.shapes[0]) if n == 2 * self.lengths[0]]
        return twice[0] if twice else None


def neuron_groups(draft: Draft, stack: str, taken: set[tuple[int, int]]) -> Iterator[list[Neurons]]:
    """Per length of free axes in a stack, the ways of grouping its places: experts apart, then module by module.

    Args:
        draft: what is known so far.
        stack: a part of names (see `LineFound.stack`).
        taken: lengths that are something else: the stream's width.
    """
    lines = [line for line in draft.lines if line.stack == stack and line.uniform]
    places: dict[tuple[int, int], list[Place]] = {}
    for line in lines:
        for axis in range(len(line.shapes[0])):
            lengths = line.lengths(axis)
            if draft.free(line, axis) and lengths not in taken and lengths[0] > 1 and lengths[0] != lengths[1]:
                places.setdefault(lengths, []).append((line, axis))
    for lengths, alike in places.items():
        twice = (2 * lengths[0], 2 * lengths[1])
        alike = alike + places.get(twice, [])
        if sum(len(line.shapes[0]) > 1 for line, _ in alike) < 2:
            continue
        apart: dict[object, list[Place]] = {}
        parents: dict[object, list[Place]] = {}
        for line, axis in alike:
            apart.setdefault(
                line.expert or len(line.shapes[0]) + (bias_owner(line, lines) is not None) > 2, []
            ).append((line, axis))
            parents.setdefault(line.module.rpartition(".")[0], []).append((line, axis))
        yield [Neurons(lengths, tuple(group)) for group in apart.values()] + [
            Neurons(lengths, tuple(group)) for group in parents.values() if len(group) < len(alike)
        ]


def bias_owner(line: LineFound, lines: list[LineFound]) -> LineFound | None:
    """The line of fused experts (three axes) whose bias a line is."""
    if len(line.shapes[0]) != 2:
        return None
    stem = line.name.removesuffix("_bias").removesuffix(".bias")
    return next(
        (o for o in lines if len(o.shapes[0]) == 3 and o.name != line.name and o.name.startswith(stem)), None
    )


def prove_experts(draft: Draft, court: Court, stack: str) -> Draft:
    """The draft with the experts of a stack permuted: their tensors, and the router's rows."""
    first, second = (s.keys for s in court.specimens)
    lines = [line for line in draft.lines if line.stack == stack and line.uniform]
    fused = [line for line in lines if len(line.shapes[0]) == 3 and re.search("expert|moe", line.name)]
    named = [line for line in lines if line.expert]
    if not fused and not named:
        return draft
    counts = {line.lengths(0) for line in fused} or {(_experts(court, 0), _experts(court, 1))}
    size = expression(counts.pop(), first, second)
    if size is None:
        return draft
    length = tuple(int(evaluate(size, c)) for c in (first, second))
    axes = {
        (line.name, a): EXPERT
        for line in lines
        for a in range(len(line.shapes[0]))
        if line.lengths(a) == length and draft.free(line, a)
    }
    index = (named or fused)[0].indices
    tried = draft.sized(**{EXPERT: size}).typed(axes)
    space = SpaceDraft(EXPERT, "Perm", index, "expert")
    if court.accepts(tried.with_space(space), EXPERT):
        return tried.with_space(space)
    return tried


def _experts(court: Court, which: int) -> int:
    """How many numbers of experts the names of a specimen have."""
    numbers = {
        int(part)
        for name in court.specimens[which].stored
        for before, part in zip(name.split("."), name.split(".")[1:], strict=False)
        if part.isdigit() and "expert" in before
    }
    return len(numbers)


def prove_neurons(draft: Draft, court: Court, stack: str, taken: set[tuple[int, int]]) -> Draft:
    """The draft with the neurons of a stack: permutations of them, and factors that the activation lets through."""
    first, second = (s.keys for s in court.specimens)
    for groups in neuron_groups(draft, stack, taken):
        for group in groups:
            group = replace(group, places=tuple(p for p in group.places if draft.free(*p)))
            if not group.written() or not group.read():
                continue
            size = expression(group.lengths, first, second)
            if size is None:
                continue
            draft = NeuronsAttempt(draft, court, group, size, outside=not group.places[0][0].stack).prove()
    return draft


class NeuronsAttempt:
    """One group of neurons on its way into a draft."""

    def __init__(self, draft: Draft, court: Court, group: Neurons, size: str, *, outside: bool) -> None:
        line = group.places[0][0]
        self.outside = outside
        kind, number = "emb" if self.outside else "ff", 1
        while f"{kind}{'' if number == 1 else number}" in draft.sizes:
            number += 1
        end = "" if number == 1 else str(number)
        self.ff, self.u = f"{kind}{end}", f"{'s' if self.outside else 'u'}{end}"
        self.draft, self.court, self.group = draft, court, group
        self.base = draft.sized(**{self.ff: size})
        experts = any(
            line.expert or (len(line.shapes[0]) == 3 and not draft.free(line, 0)) for line, _ in group.places
        )
        self.index = (*line.indices, *([EXPERT] if experts else []))

    def prove(self) -> Draft:
        """The draft with the neurons; the one given where they are not proven."""
        # what is outside the layers is a stream: of embeddings narrower than the model
        space = SpaceDraft(self.ff, "Perm", self.index, "" if self.outside else "ff", residual=self.outside)
        for fused in ("[{0} | {1}]", "({0} 2)") if self._fused() else ("",):
            tried = self._typed(fused, None).with_space(space)
            if self.court.accepts(tried, self.ff):
                return tried if self.outside else self._scaled(tried, fused)
        return self.draft

    def _fused(self) -> bool:
        return any(line.shapes[0][axis] == 2 * self.group.lengths[0] for line, axis in self.group.places)

    def _typed(self, fused: str, scaled: set[tuple[str, int]] | None) -> Draft:
        """Every place typed; those in ``scaled`` (line, half) with the factor as well, and all readers of
        neurons."""
        axes = {}
        for line, axis in self.group.places:
            read = len(line.shapes[0]) > 1 and axis != self.group.out(line)
            if read:
                axes[line.name, axis] = f"({self.ff} {self.u}')" if scaled else f"{self.ff}'"
                continue
            halves = [
                f"({self.ff} {self.u})" if scaled and (self._owner(line), half) in scaled else self.ff
                for half in (0, 1)
            ]
            twice = line.shapes[0][axis] == 2 * self.group.lengths[0]
            axes[line.name, axis] = fused.format(*(h.strip("()") for h in halves)) if twice else halves[0]
        return self.base.typed(axes)

    def _owner(self, line: LineFound) -> str:
        """The matrix that a bias belongs to, or the line itself."""
        for other, _ in self.group.written():
            if (bias := bias_of(other, self.draft.lines)) is not None and bias.name == line.name:
                return other.name
        return line.name

    def _scaled(self, draft: Draft, fused: str) -> Draft:
        """Factors of neurons: through one of the matrices that write them, or, where they are positive, through
        all."""
        writers = {(line.name, half) for line, a in self.group.written() for half in self._halves(line, a)}
        singles = [{place} for place in sorted(writers)]
        vectors = [(line.name, 0) for line, _ in self.group.places if len(line.shapes[0]) == 1]
        choices = [("Scale", part) for part in singles] + [("PositiveScale", part) for part in [*singles, writers]]
        if vectors and len(singles) == 1:
            choices.append(("PositiveScale", writers | set(vectors)))
        errors = []
        for group, part in choices:
            if fused.startswith("("):
                break  # halves that alternate cannot be told apart by axes
            space = SpaceDraft(self.u, group, (*self.index, self.ff), "scale")
            tried = replace(self._typed(fused, part), spaces=draft.spaces).sized(**{self.u: "1"}).with_space(space)
            errors.append((self.court.error(tried, [self.u]), tried))
            if errors[-1][0] < PROVEN:
                break
        if not errors:
            return draft
        error, tried = min(errors, key=lambda pair: pair[0])
        self.court.note(tried, [self.u], error)
        return tried if error < PROVEN else draft

    def _halves(self, line: LineFound, axis: int) -> tuple[int, ...]:
        return (0, 1) if line.shapes[0][axis] == 2 * self.group.lengths[0] else (0,)


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
            bias = bias_of(writer, draft.lines)
            places: list[Place] = [(writer, writer.out), (reader, axis)]
            yield Neurons(lengths, (*places, *([(bias, 0)] if bias is not None else [])))


def _parent(line: LineFound) -> str:
    return line.module.rpartition(".")[0]
