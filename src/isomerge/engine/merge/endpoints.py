"""The models of a merge, aligned, for what must run them: regression, soups, REPAIR, statistics gathered on the spot.

They are written to the folder of the unfinished output as checkpoints of their own, unit by unit, so that alignment needs no
more memory than in any other run; a killed run goes on with those that are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from isomerge.engine.live.modules import load_module
from isomerge.engine.models import Model, recognise
from isomerge.engine.pairs.pair import PairSolver, UnitResult
from isomerge.engine.plan import Plan
from isomerge.engine.run import Output, StreamWriter, run_key
from isomerge.engine.streaming import Fuse, elements_of_results, stream_units, write_alone
from isomerge.progress import Observer
from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from isomerge.data.examples import Examples


@dataclass(frozen=True)
class Forward:
    """What a method that runs models is given."""

    models: Sequence[Model]
    """The aligned models, in order."""
    stored: Sequence[Model]
    """The same as they are stored."""
    examples: Examples
    device: str
    observer: Observer
    aligned: bool

    @cached_property
    def endpoints(self) -> list[nn.Module]:
        """The aligned models, live."""
        return [self._load(model) for model in self.models]

    def unaligned(self) -> list[nn.Module]:
        """The stored models, live."""
        return [self._load(model) for model in self.stored]

    def _load(self, model: Model) -> nn.Module:
        self.observer(f"loading {model.ref}", 0, 1)
        return load_module(model, device=self.device)


def write_endpoints(
    stream: StreamWriter, solvers: Sequence[PairSolver], key: str
) -> tuple[list[Model], list[list[UnitResult]]]:
    """Write every source where its solver moves it; returns the aligned models, the anchor first, and what was found.

    Every solver has its alignment as ``given`` from then on.
    """
    if not solvers:
        return [stream.donor], []
    anchor, found, results = solvers[0].anchor, [], []
    for k, solver in enumerate(solvers):
        folder, patch = stream.writer.blob(f"aligned-{k}"), stream.writer.blob(f"aligned-{k}.safetensors")
        record = stream.done(f"aligned {k}")
        if record is None:
            here = _write_one(solver, anchor, within(stream.output, folder), [key, k])
            solver.given = solver.alignment(elements_of_results(here))
            solver.given.save(patch)
            stream.writer.commit(f"aligned {k}", {"results": [r.record() for r in here]})
        else:
            here = [UnitResult.restored(r) for r in record["results"]]
            solver.given = Alignment.load(patch, solver.source.declared)
        model = recognise(folder)
        model.checkpoint.ref = solver.source.ref
        found.append(model)
        results.append(here)
    return [anchor, *found], results


def within(output: Output, folder: Path) -> Output:
    """Where a checkpoint on the way to an output is written: by the same engine, with the same jobs."""
    return Output(
        folder,
        force=True,
        observer=output.observer,
        jobs=output.jobs,
        max_memory=output.max_memory,
        engine=output.engine,
    )


def _write_one(solver: PairSolver, anchor: Model, output: Output, settings: Any) -> list[UnitResult]:
    key = run_key("aligned", [anchor, solver.source], *settings)
    with StreamWriter(solver.source, output, key) as own:
        results = stream_units(own, [solver], solver.plan, lambda unit, blocks, by, first: blocks[1], anchor)
        write_alone(own, solver.plan, solver.source, solver.dtype, solver.given)
        own.finish({"command": "align"}, {}, "")
    return results[0]


def write_fused(stream: StreamWriter, solvers: Sequence[PairSolver], plan: Plan, fuse: Fuse, key: str) -> Model:
    """A merge of aligned models in the folder of the unfinished output, for what must run it before it is written."""
    folder, donor = stream.writer.blob("fused"), stream.donor
    if stream.done("fused") is None:
        own_key = run_key("fused", [donor, *(solver.source for solver in solvers)], key)
        with StreamWriter(donor, within(stream.output, folder), own_key) as own:
            stream_units(own, solvers, plan, fuse, donor)
            write_alone(own, plan, donor, solvers[0].dtype)
            own.finish({"command": "merge"}, {}, "")
        stream.writer.commit("fused", {})
    return recognise(folder)
