"""The models of a merge, aligned, for what must run them: regression, soups, REPAIR, statistics gathered on the
spot.

They are written to the folder of the unfinished output as checkpoints of their own, unit by unit, so that alignment
needs no more memory than in any other run; a killed run goes on with those that are complete. They are written in
the working dtype: what is rounded to half precision after a rotation is rounded twice by the time the merge is
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isomerge.merging.fusing import said_of
from isomerge.models.recognised import Model, recognise
from isomerge.models.unit_plan import Plan
from isomerge.run.first_reading import FirstReadings
from isomerge.run.streaming import Fuse, elements_of_results, stream_units, write_alone
from isomerge.run.unit_work import WholeSolver
from isomerge.run.writing_run import Output, StreamWriter, run_key
from isomerge.solve.pairs.pair import Blocks, PairSolver, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import Unit


def write_endpoints(
    stream: StreamWriter, solvers: Sequence[WholeSolver], key: str, *, name: str = "aligned"
) -> tuple[list[Model], list[list[UnitResult]], list[Alignment | None]]:
    """Write every source where its solver moves it; returns the aligned models, the anchor first, what was found,
    and the alignment of every source; None of a transport that is none.

    ``name`` is what their folders are called.
    """
    if not solvers:
        return [stream.donor], [], []
    anchor, aligned, results, moves = solvers[0].anchor, [], [], []
    for k, solver in enumerate(solvers):
        folder, patch = stream.writer.blob(f"{name}-{k}"), stream.writer.blob(f"{name}-{k}.safetensors")
        record = stream.done(f"{name} {k}")
        if record is None:
            output = intermediate_output(stream.output, folder, solver.dtype)
            solved = _write_one(solver, anchor, output, [key, k])
            moved = solver.alignment_as_read(elements_of_results(solved))
            if moved is not None:
                moved.save(patch)
            stream.writer.commit(f"{name} {k}", {"results": [r.record() for r in solved]})
        else:
            solved = [UnitResult.restored(r) for r in record["results"]]
            moved = Alignment.load(patch, solver.source.declared) if patch.is_file() else None
        model = recognise(folder, spec_file=solver.source.spec_file)
        model.checkpoint.ref, model.checkpoint.own = solver.source.ref, solver.source.checkpoint.own
        aligned.append(model)
        results.append(solved)
        moves.append(moved)
    return [anchor, *aligned], results, moves


def intermediate_output(output: Output, folder: Path, dtype: torch.dtype) -> Output:
    """Where a checkpoint on the way to an output is written: in ``dtype``, the run's working dtype, whatever the
    models are stored in and the output is written in; by the same engine, with the same jobs."""
    return Output(
        folder,
        dtype=str(dtype).removeprefix("torch."),
        overwrite=True,
        observer=output.observer,
        jobs=output.jobs,
        max_memory=output.max_memory,
        engine=output.engine,
    )


def _write_one(solver: WholeSolver, anchor: Model, output: Output, settings: Any) -> list[UnitResult]:
    """Write a source, all of its tensors and no others: of the plan's only those that it stores, and those that the
    donor lacks."""
    source, plan = solver.source, solver.plan
    key = run_key("aligned", [anchor, source], *settings)
    shared = {block.key for unit in plan.units for block in unit.blocks}
    rest = replace(plan, alone=tuple(block for block in source.blocks if block.key not in shared))
    with StreamWriter(source, output, key) as own:
        results = stream_units(own, [solver], plan, partial(_stored_by, source), anchor)
        moved = solver.alignment_as_read(elements_of_results(results[0]))
        write_alone(own, rest, source, solver.dtype, moved)
        own.finish_unreported()
    return results[0]


def _stored_by(
    source: Model, unit: Unit, blocks: list[Blocks], by: list[Alignment | None], first: FirstReadings
) -> Blocks:
    """The moved blocks of a unit that the source has tensors for: a head that is tied to the embeddings may have
    none."""
    return {block: x for block, x in blocks[1].items() if all(name in source.names for name in block.canonical)}


def write_fused(
    stream: StreamWriter,
    first: Model,
    solvers: Sequence[PairSolver],
    plan: Plan,
    fuse: Fuse,
    dtype: torch.dtype,
    key: str,
) -> Model:
    """A merge of aligned models in the folder of the unfinished output, for what must run it before it is written.

    Args:
        first: the first of the run's models, moved where it is moved; its names are those of ``stream.donor``.
        solvers: from ``first`` to each of the others.
        plan, fuse: of what they are fused by.
        dtype: the working dtype, in which it is written.
        key: of the run.
    """
    folder = stream.writer.blob("fused")
    if stream.done("fused") is None:
        own_key = run_key("fused", [first, *(solver.source for solver in solvers)], key)
        with StreamWriter(first, intermediate_output(stream.output, folder, dtype), own_key) as own:
            results = stream_units(own, solvers, plan, fuse, first)
            write_alone(own, plan, first, dtype)
            own.finish_unreported()
        stream.writer.commit("fused", {"notes": said_of(results)})
    fused = recognise(folder, spec_file=first.spec_file)
    fused.checkpoint.own = first.checkpoint.own
    return fused
