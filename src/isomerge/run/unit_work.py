"""The work on one unit: read, matched, fused and named as it is written; the same for every engine and on every
machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from isomerge.checkpoint.tensor_place import PlacedTensor
from isomerge.matching.distances import squared_distance_and_norm
from isomerge.models.recognised import Model, Moved, working_dtype
from isomerge.models.stored_form import StoredForm
from isomerge.models.unit_plan import Plan
from isomerge.observe.live.accelerator import CPU
from isomerge.run.first_reading import FirstReadings, first_readings
from isomerge.solve.pairs.pair import Blocks, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import VOCABULARY
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

Fuse = Callable[
    [Unit, "list[Blocks]", "list[Alignment | None]", FirstReadings], "Mapping[Block, Tensor | PlacedTensor]"
]
"""From the blocks of a unit, the anchor's and the moved ones of every source, and what moved them (None: the
anchor), to those that are written; and which of the blocks are to be read first."""
Solved = tuple[list[UnitResult], dict[str, "Tensor | PlacedTensor"]]
"""What every solver found for a unit, and the tensors that are written, by name."""


class Fused(dict["Block", "Tensor | PlacedTensor"]):
    """The blocks of a unit that are written, and what is to be told of them."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, str]] = []
        """Names of tensors and what a method says of them."""


class UnitSolver(Protocol):
    """What brings the units of a source to an anchor: `PairSolver`, or one that transports."""

    @property
    def source(self) -> Model:
        """The model that is moved."""
        ...

    @property
    def device(self) -> str:
        """Where units are solved."""
        ...

    def load(self, model: Model, unit: Unit, *, mapped: bool = False) -> Blocks:
        """A unit's blocks of one model in the working dtype. With ``mapped``, in pages of their files where that
        can be: the caller must call `Model.check_unchanged` after its last use."""
        ...

    def moves(self, unit: Unit) -> bool:
        """Whether a unit's blocks are changed, on loading or by solving."""
        ...

    def solve(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        """What was found for a unit, and its blocks moved."""
        ...

    def still(self, unit: Unit, squares: Mapping[Block, tuple[float, float]]) -> UnitResult:
        """What is told of a unit that nothing moves, from squared distances and the anchor's squared norms."""
        ...

    def alignment(self, elements: dict[str, Tensor]) -> Alignment | None:
        """The group element of the whole model; None where what moves it is none."""
        ...


@runtime_checkable
class WholeSolver(UnitSolver, Protocol):
    """One that moves the whole of a model by what its units' results say, and nothing else."""

    @property
    def anchor(self) -> Model:
        """What the source is brought to."""
        ...

    @property
    def plan(self) -> Plan:
        """Over the blocks that both have."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype."""
        ...

    def alignment_as_read(self, elements: dict[str, Tensor]) -> Alignment | None:
        """The element that moves the source as it is read; None where what moves it is none."""
        ...


@dataclass
class UnitWork:
    """All that is needed to work on any unit of a run."""

    units: tuple[Unit, ...]
    """Those of the plan, which are numbered by it."""
    anchor: Model
    solvers: tuple[UnitSolver, ...]
    fuse: Fuse
    form: StoredForm

    @cached_property
    def numbers(self) -> dict[Unit, int]:
        """The number of every unit in the plan."""
        return {unit: number for number, unit in enumerate(self.units)}

    @property
    def models(self) -> list[Model]:
        """The anchor, then the source of every solver."""
        return [self.anchor, *(solver.source for solver in self.solvers)]

    @property
    def device(self) -> str:
        """Where units are matched."""
        return next((solver.device for solver in self.solvers if solver.device != CPU), CPU)

    def moves(self, unit: Unit) -> bool:
        """Whether any model's blocks of a unit are changed."""
        return any(solver.moves(unit) for solver in self.solvers) or bool(self._tables(unit))

    def solve(self, unit: Unit) -> Solved:
        """Read, match and fuse one unit.

        Raises:
            IsomergeError: a damaged tensor, or weights whose products overflow.
        """
        if self.solvers and not self.moves(unit):
            return self._passed(unit)
        base, *sources = self._load(unit)
        results, moved = [], []
        for solver, source in zip(self.solvers, sources, strict=True):
            result, there = solver.solve(unit, base, source)
            results.append(result)
            moved.append(there)
        elements = [s.alignment(r.elements) for s, r in zip(self.solvers, results, strict=True)]
        blocks, by = [base, *moved], [None, *elements]
        if tables := self._tables(unit):
            self._take_lent(unit, tables, blocks, by)
        fused = self.fuse(unit, blocks, by, {})
        return _noted(results, fused), self._named(dict(fused))

    def _tables(self, unit: Unit) -> dict[Block, int]:
        """The tables of a unit of which some model has rows of others, and their axes over tokens."""
        if not any(model.checkpoint.lent for model in self.models):
            return {}
        axes = ((block, block.line.axis_over(VOCABULARY)) for block in unit.blocks)
        return {block: axis for block, axis in axes if axis is not None}

    def _take_lent(
        self, unit: Unit, tables: Mapping[Block, int], blocks: list[Blocks], by: Sequence[Alignment | None]
    ) -> None:
        """Give the rows of tokens that a model lacks those of the others where these are moved to: they are in
        their bases, and no alignment of the model moves them there. Rows that were left out of the match come back
        moved alike."""
        # where vocabularies differ
        from isomerge.models.vocabulary_views import with_lent_rows

        every = [model.checkpoint.lent for model in self.models]
        for k, (model, lent) in enumerate(zip(self.models, every, strict=True)):
            if lent is not None and lent.whole is not None:
                whole, alignment = replace(model.without(Moved), checkpoint=lent.whole), by[k]
                stored = {block: whole.assemble(block, blocks[k][block].dtype) for block in unit.blocks}
                moved = stored if alignment is None else alignment.applied(stored)
                blocks[k] = {**blocks[k], **{table: moved[table] for table in tables}}
        place = {model.checkpoint.ref: k for k, model in reversed([*enumerate(self.models)])}
        for table, axis in tables.items():
            lent_to = with_lent_rows([tensors[table] for tensors in blocks], axis, every, place)
            for k, rows in enumerate(lent_to):
                blocks[k] = {**blocks[k], table: rows}

    def _passed(self, unit: Unit) -> Solved:
        """A unit that nothing moves: what is fused piece by piece is read, summed and measured by the way."""
        models = self.models
        first = first_readings(unit, models)
        blocks = [
            {b: first[b].tensors[k] if b in first else model.unrounded(b) for b in unit.blocks}
            for k, model in enumerate(models)
        ]
        by = [None, *(solver.alignment({}) for solver in self.solvers)]
        fused = self.fuse(unit, blocks, by, first)
        results = []
        for k, solver in enumerate(self.solvers):
            squares = {
                block: first[block].squares[k]
                if block in first
                else squared_distance_and_norm(blocks[0][block], blocks[k + 1][block])
                for block in unit.blocks
            }
            results.append(solver.still(unit, squares))
        return _noted(results, fused), self._named(
            dict(fused)
        )  # by now all was read: what is damaged is told as it is stored

    def _named(self, fused: dict[Block, Tensor | PlacedTensor]) -> dict[str, Tensor | PlacedTensor]:
        """What is written, by its names; the blocks are let go."""
        donor, named = self.form.donor, dict[str, "Tensor | PlacedTensor"]()
        for block in list(fused):  # one by one: what is converted is let go
            tensor = fused.pop(block)
            if isinstance(tensor, PlacedTensor):
                named[donor.names[block.canonical[0]]] = tensor
            else:
                named |= self.form.named(donor, {block: tensor})
        return named

    def check_unchanged(self, unit: Unit) -> None:
        """Raises IsomergeError when a file changed that a unit was read from: its tensors may be pages of it."""
        for model in self.models:
            for block in unit.blocks:
                model.check_unchanged(block)

    def _load(self, unit: Unit) -> list[Blocks]:
        """A unit's blocks of the anchor and of every source, in the working dtype, in pages of their files where
        that can be (`check_unchanged` follows)."""
        if not self.solvers:  # one model alone
            dtype = working_dtype([self.anchor])
            return [self.anchor.unit(unit.blocks, dtype, mapped=True)]
        first = self.solvers[0].load(self.anchor, unit, mapped=True)
        return [first, *(s.load(s.source, unit, mapped=True) for s in self.solvers)]


def _noted(results: list[UnitResult], fused: Mapping[Block, Tensor | PlacedTensor]) -> list[UnitResult]:
    """What was found, the first told what the fused blocks have to tell."""
    if isinstance(fused, Fused) and results:
        results[0].notes += fused.notes
    return results
