"""Streaming: every unit is read once, matched, fused and written once, the reading and writing beside the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from isomerge.engine.memory import free_memory
from isomerge.engine.models import Model, working_dtype
from isomerge.engine.pair import Blocks, PairSolver, UnitResult
from isomerge.engine.pipeline import (
    WriteBehind,
    ahead,
    beside,
    expected,
    libraries_frozen,
    one_thread_each,
    spread,
    within,
)
from isomerge.engine.plan import LIBRARIES, Plan, unit_bytes, unit_memory
from isomerge.errors import IsomergeError
from isomerge.pieces import scratch_kept
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from isomerge.engine.run import Output, StreamWriter

EXPECTED = 1 << 30
"""Stored bytes of the largest unit that the system is asked to read ahead."""
FREE = 0.8
"""Of the memory that is free, what several jobs may take when no limit is given."""
Fuse = Callable[[Unit, "list[Blocks]", "list[Alignment | None]"], "Blocks"]
"""From the blocks of a unit, the anchor's and the moved ones of every source, and what moved them (None: the anchor), to
those that are written."""


class UnitSolver(Protocol):
    """What brings the units of a source to an anchor: `PairSolver`, or one that transports."""

    @property
    def source(self) -> Model:
        """The model that is moved."""
        ...

    def load(self, model: Model, unit: Unit, *, stored: bool = False) -> Blocks:
        """A unit's blocks of one model in the working dtype, or as they are stored."""
        ...

    def moves(self, unit: Unit) -> bool:
        """Whether a unit's blocks are changed, on loading or by solving."""
        ...

    def solve(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        """What was found for a unit, and its blocks moved."""
        ...

    def alignment(self, elements: dict[str, Tensor]) -> Alignment | None:
        """The group element of the whole model; None where what moves it is none."""
        ...


def stream_units(
    stream: StreamWriter,
    solvers: Sequence[UnitSolver],
    plan: Plan,
    fuse: Fuse,
    anchor: Model,
    *,
    guard: bool = False,
) -> list[list[UnitResult]]:
    """Match, fuse and write every unit; returns the results of every solver.

    Units are worked on several at once, each by one thread, so that results do not depend on how many there are: as many as the
    output's ``jobs``, or else, where nothing moves them, as torch has threads. Without ``jobs``, units that are matched come
    one after the other, with all of torch's threads on each.

    Raises:
        IsomergeError: the largest unit needs more than the output's ``max_memory``.
    """
    import torch

    models = [anchor, *(s.source for s in solvers)]
    sizes = {unit: sum(unit_bytes(m, unit) for m in models) for unit in plan.units}
    numbers = {unit: number for number, unit in enumerate(plan.units)}
    left = [unit for unit in plan.units if stream.done(unit.key) is None]
    still = not any(solver.moves(unit) for unit in left for solver in solvers)
    workers = stream.output.jobs or (torch.get_num_threads() if still else 0)
    fits = _room(stream.output, sizes, {unit: unit_memory(plan, unit, models, guard=guard) for unit in left})
    results: dict[Unit, list[UnitResult]] = {}
    seen, total = sum(sizes[u] for u in plan.units) - sum(sizes[u] for u in left), sum(sizes.values())
    with one_thread_each(workers), libraries_frozen(), scratch_kept(), WriteBehind() as writer:
        work = partial(_one_unit, stream, solvers, anchor, fuse)
        order = spread(left, sizes.__getitem__) if workers else left
        coming = partial(_expect, models, sizes)
        for unit, (found, tensors) in ahead(work, expected(order, coming), fits, workers):
            stream.output.observer(unit.key, seen, total)
            writer.put(partial(_write, stream, models, unit, numbers[unit], found, tensors))
            results[unit] = found
            seen += sizes[unit]
    for unit in (u for u in plan.units if u not in results):
        record = stream.writer.done[unit.key]
        results[unit] = [
            _restored(stream, r, _elements_file(numbers[unit], k)) for k, r in enumerate(record["results"])
        ]
    stream.output.observer("", total, total)
    return [[results[unit][k] for unit in plan.units] for k in range(len(solvers))]


def _room(
    output: Output, sizes: Mapping[Unit, int], memory: Mapping[Unit, float]
) -> Callable[[Sequence[Unit]], bool]:
    """Whether units may be worked on at once: within ``max_memory``; with ``jobs`` alone, within most of what is free."""
    if output.max_memory is None:
        return within(memory.__getitem__, FREE * free_memory()) if output.jobs else beside(sizes.__getitem__)
    largest = max(memory, key=memory.__getitem__, default=None)
    if largest is not None and memory[largest] + LIBRARIES > output.max_memory:
        need = (memory[largest] + LIBRARIES) / 1e9
        raise IsomergeError(
            f"--max-memory {output.max_memory / 1e9:.3g}GB is too little: the unit of {largest.key} needs about {need:.2g} GB, "
            "libraries included; give that, or match fewer spaces"
        )
    return within(memory.__getitem__, output.max_memory - LIBRARIES)


def _expect(models: Sequence[Model], sizes: Mapping[Unit, int], unit: Unit) -> None:
    if sizes[unit] > EXPECTED:  # it would take the place of what is read before it
        return
    for model in models:
        for block in unit.blocks:
            model.expect(block)


def _load(solvers: Sequence[UnitSolver], anchor: Model, unit: Unit) -> list[Blocks]:
    """A unit's blocks of the anchor and of every source; what nothing moves, as it is stored: half as large."""
    if not solvers:  # one model alone
        return [{block: anchor.assemble(block, working_dtype([anchor])) for block in unit.blocks}]
    stored = not any(solver.moves(unit) for solver in solvers)
    found = [solvers[0].load(anchor, unit, stored=stored)]
    return found + [solver.load(solver.source, unit, stored=stored) for solver in solvers]


def _one_unit(
    stream: StreamWriter, solvers: Sequence[UnitSolver], anchor: Model, fuse: Fuse, unit: Unit
) -> tuple[list[UnitResult], dict[str, Tensor]]:
    """What was found, and the tensors that are written, by name."""
    base, *sources = _load(solvers, anchor, unit)
    found, moved = [], []
    for solver, source in zip(solvers, sources, strict=True):
        result, there = solver.solve(unit, base, source)
        found.append(result)
        moved.append(there)
    by: list[Alignment | None] = [None, *(s.alignment(r.elements) for s, r in zip(solvers, found, strict=True))]
    fused = fuse(unit, [base, *moved], by)
    named: dict[str, Tensor] = {}
    for block in list(fused):  # one by one: what is converted is let go
        named |= stream.named(stream.donor, {block: fused.pop(block)})
    return found, named


def _write(
    stream: StreamWriter,
    models: Sequence[Model],
    unit: Unit,
    number: int,
    found: list[UnitResult],
    tensors: dict[str, Tensor],
) -> None:
    for name, tensor in tensors.items():
        stream.writer.write(name, tensor)
    for model in models:  # of which tensors may be pages of the files, up to here
        for block in unit.blocks:
            model.check_unchanged(block)
    for k, result in enumerate(found):
        if result.elements:
            _save_elements(stream.writer.blob(_elements_file(number, k)), result.elements)
    stream.writer.commit(unit.key, {"results": [{**r.record(), "moved": bool(r.elements)} for r in found]})


def _elements_file(number: int, source: int) -> str:
    return f"{number}-{source}.safetensors"


def write_alone(
    stream: StreamWriter, plan: Plan, donor: Model, dtype: torch.dtype, moved_by: Alignment | None = None
) -> None:
    """The donor's own tensors, which no other model has: copied, and moved with the donor where it is moved."""
    for block in plan.alone:
        key = f"alone {block.key}"
        if stream.done(key) is None:
            tensor = donor.assemble(block, dtype)
            if moved_by is not None and tensor.is_floating_point():
                moved_by.act_linearly(block, tensor)
            stream.put(block, tensor)
            stream.writer.commit(key, {})


def prepare_votes(stream: StreamWriter, solvers: Sequence[PairSolver]) -> None:
    """The stack-wide spaces of every source, kept across a resume."""
    from safetensors.torch import load_file

    for k, solver in enumerate(solvers):
        if not solver.plan.votes:
            continue
        path = stream.writer.blob(f"votes-{k}.safetensors")
        if stream.done(f"votes {k}") is not None:
            solver.votes = load_file(path)
        else:
            _save_elements(path, solver.collect_votes())
            stream.writer.commit(f"votes {k}", {})


def _save_elements(path: Path, elements: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in elements.items()}, str(path))


def _restored(stream: StreamWriter, record: dict[str, Any], blob: str) -> UnitResult:
    from safetensors.torch import load_file

    elements = load_file(stream.writer.blob(blob)) if record["moved"] else {}
    return UnitResult(record["unit"], record["layer"], record["blocks"], record["dead"], elements)


def elements_of_results(results: Iterable[UnitResult]) -> dict[str, Tensor]:
    """All elements of one source."""
    found: dict[str, Tensor] = {}
    for result in results:
        found |= result.elements
    return found
