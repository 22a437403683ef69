"""Streaming: every unit is read once, matched, fused and written once, the reading and writing beside the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.checkpoint.tensor_place import PlacedTensor
from isomerge.evidence.pictures import import_ahead
from isomerge.files import write_tensors
from isomerge.models.recognised import Model, Moved
from isomerge.models.unit_plan import Plan, unit_bytes
from isomerge.records import Json
from isomerge.run.cost import unit_memory
from isomerge.run.local_engine import Demand, LocalEngine
from isomerge.run.pipeline import WriteBehind
from isomerge.run.unit_work import Fuse, UnitSolver, UnitWork
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.pairs.pair import PairSolver, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import Unit


def stream_units(
    stream: StreamWriter,
    solvers: Sequence[UnitSolver],
    plan: Plan,
    fuse: Fuse,
    anchor: Model,
    *,
    guard: bool = False,
    piecewise: bool = False,
) -> list[list[UnitResult]]:
    """Match, fuse and write every unit; returns the results of every solver.

    The output's engine works on the units (see `isomerge.run.local_engine`); what it gives is written and
    journalled here. ``piecewise`` is whether ``fuse`` needs no more than a piece of every model at a time.
    """
    work = UnitWork(plan.units, anchor, tuple(solvers), fuse, stream.form)
    sizes = {unit: sum(unit_bytes(m, unit) for m in work.models) for unit in plan.units}
    left = [unit for unit in plan.units if stream.done(unit.key) is None]
    output = stream.output
    is_local = piecewise and isinstance(
        output.engine, LocalEngine
    )  # elsewhere units are whole before they are written
    memory = {
        unit: unit_memory(plan, unit, work.models, guard=guard, piecewise=is_local and not work.moves(unit))
        for unit in left
    }
    demand = Demand(left, sizes, memory, stream.writer.folder, output.jobs, output.max_memory)
    if any(map(work.moves, left)):
        import_ahead()
    results: dict[Unit, list[UnitResult]] = {}
    seen, total = sum(sizes[u] for u in plan.units) - sum(sizes[u] for u in left), sum(sizes.values())
    with closing(output.engine.run(work, demand)) as ready, WriteBehind() as writer:
        for unit, (solved, tensors) in ready:
            output.observer(unit.key, seen, total)
            writer.put(partial(_write, stream, work, unit, solved, tensors))
            results[unit] = solved
            seen += sizes[unit]
    for unit in (u for u in plan.units if u not in results):
        record = stream.writer.done[unit.key]
        results[unit] = [
            _restored(stream, r, _elements_file(work.numbers[unit], k)) for k, r in enumerate(record["results"])
        ]
    output.observer("", total, total)
    return [[results[unit][k] for unit in plan.units] for k in range(len(solvers))]


def _write(
    stream: StreamWriter,
    work: UnitWork,
    unit: Unit,
    solved: list[UnitResult],
    tensors: dict[str, Tensor | PlacedTensor],
) -> None:
    for name, tensor in tensors.items():
        stream.writer.write(name, tensor)
    work.check_unchanged(unit)  # tensors may be pages of the files, up to here
    for k, result in enumerate(solved):
        if result.elements:
            _save_elements(stream.writer.blob(_elements_file(work.numbers[unit], k)), result.elements)
    stream.writer.commit(unit.key, {"results": [{**r.record(), "moved": bool(r.elements)} for r in solved]})


def _elements_file(number: int, source: int) -> str:
    return f"{number}-{source}.safetensors"


def write_alone(
    stream: StreamWriter, plan: Plan, donor: Model, dtype: torch.dtype, moved_by: Alignment | None = None
) -> None:
    """The donor's own tensors, which no other model has: copied, and moved with the donor where it is moved."""
    moved = donor if moved_by is None else donor.seen(Moved(moved_by))
    for block in plan.alone:
        key = f"alone {block.key}"
        if stream.done(key) is None:
            stream.put(block, moved.assemble(block, dtype))
            stream.writer.commit(key, {})


def prepare_votes(stream: StreamWriter, solvers: Sequence[PairSolver]) -> list[PairSolver]:
    """The solvers with the stack-wide spaces of every source, which are kept across a resume."""
    voted = list(solvers)
    for k, solver in enumerate(solvers):
        if solver.left or not solver.plan.votes:
            continue
        path = stream.writer.blob(f"votes-{k}.safetensors")
        if stream.done(f"votes {k}") is not None:
            votes = {key: aligned(x) for key, x in load_file(path).items()}
        else:
            _save_elements(path, votes := solver.collect_votes())
            stream.writer.commit(f"votes {k}", {})
        voted[k] = replace(solver, votes=votes)
    return voted


def _save_elements(path: Path, elements: Mapping[str, Tensor]) -> None:
    write_tensors(path, elements, durable=False)  # a run that goes on checks what was written


def _restored(stream: StreamWriter, record: Json, blob: str) -> UnitResult:
    elements = load_file(stream.writer.blob(blob)) if record["moved"] else {}
    return UnitResult.restored(record, {key: aligned(x) for key, x in elements.items()})


def elements_of_results(results: Iterable[UnitResult]) -> dict[str, Tensor]:
    """All elements of one source."""
    elements: dict[str, Tensor] = {}
    for result in results:
        elements |= result.elements
    return elements
