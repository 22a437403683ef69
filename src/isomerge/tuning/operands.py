"""The models of a merge, aligned once and kept: what every trial fuses, and what the merge that is written is made
of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.files import disk_errors, write_tensors
from isomerge.merging.merge_plan import MergePlan
from isomerge.models.peak_memory import free_memory
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import unit_bytes
from isomerge.observe.live.accelerator import CPU
from isomerge.run.cost import unit_memory
from isomerge.run.first_reading import FirstReadings
from isomerge.run.local_engine import Demand, LocalEngine
from isomerge.run.unit_work import Fused, UnitSolver, UnitWork
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.pairs.pair import Blocks, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

ROOM = 0.4
"""The share of the memory that is left, beside the module that is run, for operands; else they lie on disk."""
MODULE = 4.0
"""Bytes of a weight of the module that is run."""


@dataclass
class Operands:
    """The blocks that methods are given, unit by unit, the anchor's first; those of units that nothing moves are
    pages of the models' files."""

    models: list[Model]
    """The anchor, then the source of every solver."""
    used: list[UnitSolver]
    folder: Path
    """Where moved blocks lie, if not in memory."""
    on_disk: bool
    results: dict[Unit, list[UnitResult]] = field(default_factory=dict)
    """What was found for every unit that something moves, source by source."""
    by: dict[Unit, list[Alignment | None]] = field(default_factory=dict)
    _kept: dict[Unit, list[Blocks]] = field(default_factory=dict)
    _files: dict[Unit, tuple[Path, list[list[Block]]]] = field(default_factory=dict)

    def keep(
        self, unit: Unit, blocks: list[Blocks], by: list[Alignment | None], _first: FirstReadings
    ) -> Mapping[Block, Any]:
        """Keep a unit's aligned blocks; in the place of a method, which gives what is written."""
        self.by[unit] = by
        if self.on_disk:
            names = [list(part) for part in blocks]
            path = self.folder / f"{sha256(unit.key.encode()).hexdigest()[:32]}.safetensors"
            with disk_errors(path):
                write_tensors(path, _numbered(blocks), durable=False)
            self._files[unit] = (path, names)
        else:
            self._kept[unit] = blocks
        return Fused()

    def blocks(self, unit: Unit) -> list[Blocks]:
        """A unit's blocks of every model: moved ones in the working dtype, others as they are stored."""
        if unit in self._kept:
            return self._kept[unit]
        if unit in self._files:
            path, names = self._files[unit]
            tensors = load_file(path)
            return [
                {block: aligned(tensors[f"{k}-{n}"]) for n, block in enumerate(part)}
                for k, part in enumerate(names)
            ]
        return [{block: model.unrounded(block) for block in unit.blocks} for model in self.models]

    def moved_by(self, unit: Unit) -> list[Alignment | None]:
        """What has moved a unit, model by model; None for the anchor."""
        return self.by[unit] if unit in self.by else [None, *(solver.alignment({}) for solver in self.used)]

    @property
    def nbytes(self) -> int:
        """Of what is kept in memory, the anchor's pages of files counted as well."""
        return sum(t.nbytes for unit in self._kept.values() for part in unit for t in part.values())

    def solvers(self) -> list[KnownSolver]:
        """What gives the same blocks once more, for the merge that is written."""
        return [KnownSolver(solver, k, self) for k, solver in enumerate(self.used)]

    def check_unchanged(self) -> None:
        """Raises IsomergeError when a file has changed that blocks are pages of."""
        for model in self.models:
            for block in model.blocks:
                model.check_unchanged(block)


def _numbered(blocks: Sequence[Blocks]) -> dict[str, Tensor]:
    """Blocks by names that a file can have."""
    return {f"{k}-{n}": x.contiguous() for k, part in enumerate(blocks) for n, x in enumerate(part.values())}


@dataclass(frozen=True)
class KnownSolver:
    """A solver whose units are solved: it gives what was found, and reads nothing that is kept."""

    inner: UnitSolver
    number: int
    operands: Operands

    @property
    def source(self) -> Model:
        """The model that was moved."""
        return self.inner.source

    @property
    def device(self) -> str:
        """Nothing is solved."""
        return CPU

    def load(self, model: Model, unit: Unit, *, mapped: bool = False) -> Blocks:
        """A unit's blocks: the anchor's, or those of the source where it was moved."""
        known = unit in self.operands.by
        at = 0 if model is self.operands.models[0] else 1 + self.number
        return self.operands.blocks(unit)[at] if known else self.inner.load(model, unit, mapped=mapped)

    def moves(self, unit: Unit) -> bool:
        """See `UnitSolver.moves`."""
        return self.inner.moves(unit)

    def solve(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        """What was found for the unit, and its blocks, which are moved already."""
        known = self.operands.results[unit][self.number]
        return replace(known, notes=list(known.notes)), source  # the method adds its own

    def still(self, unit: Unit, squares: Mapping[Block, tuple[float, float]]) -> UnitResult:
        """See `UnitSolver.still`."""
        return self.inner.still(unit, squares)

    def alignment(self, elements: dict[str, Tensor]) -> Alignment | None:
        """See `UnitSolver.alignment`."""
        return self.inner.alignment(elements)


def moved_bytes(plan: MergePlan, units: Sequence[Unit]) -> float:
    """What the blocks of units take in the working dtype, over all models."""
    wide = plan.dtype.itemsize
    stored = [(model, unit) for model in (plan.target, *plan.sources) for unit in units]
    return float(sum(unit_bytes(model, unit) * wide / _width(model) for model, unit in stored))


def _width(model: Model) -> float:
    """Bytes of an average stored entry."""
    infos = list(model.checkpoint.tensors.values())
    return max(sum(info.nbytes for info in infos) / max(sum(prod(info.shape) for info in infos), 1), 1.0)


def align_once(plan: MergePlan, stream: StreamWriter, used: Sequence[UnitSolver]) -> Operands:
    """Solve every unit that something moves, and keep what methods are given of it.

    Args:
        plan: of the merge, all passes over whole models done.
        stream: the run's.
        used: what brings the units together. What memory has no room for lies in the folder of the unfinished
            output.

    Raises:
        IsomergeError: a damaged tensor, or weights whose products overflow.
    """
    folder = stream.writer.folder / "operands"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    output, models = stream.output, [plan.target, *(solver.source for solver in used)]
    operands = Operands(models, list(used), folder, on_disk=False)
    work = UnitWork(plan.plan.units, plan.target, tuple(used), operands.keep, stream.form)
    units = [unit for unit in plan.plan.units if work.moves(unit)]
    if not units:
        return operands
    module = MODULE * sum(prod(info.shape) for info in plan.donor.checkpoint.tensors.values())
    room = free_memory() if output.max_memory is None else output.max_memory
    operands.on_disk = moved_bytes(plan, units) > ROOM * (room - module)
    if operands.on_disk:
        with disk_errors(folder):
            folder.mkdir()
    sizes = {unit: sum(unit_bytes(model, unit) for model in models) for unit in units}
    memory = {unit: unit_memory(plan.plan, unit, models, guard=False, piecewise=False) for unit in units}
    demand = Demand(units, sizes, memory, folder, output.jobs, output.max_memory)
    done, total = 0, sum(sizes.values())
    with closing(LocalEngine().run(work, demand)) as ready:
        for unit, (solved, _) in ready:
            output.observer(f"aligning once: {unit.key}", done, total)
            operands.results[unit] = solved
            done += sizes[unit]
    return operands
