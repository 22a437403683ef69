"""Fusing by running the aligned models: regression, soups, statistics gathered on the spot, and REPAIR after any
method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from isomerge.fusion.forward.repair import repair as mended
from isomerge.fusion.forward.running import Forward
from isomerge.fusion.fusion import Fusion
from isomerge.fusion.registry import STATISTICS
from isomerge.merging.endpoints import write_endpoints, write_fused
from isomerge.merging.fusing import Fuser, said_of
from isomerge.merging.fusion_statistics import FusionStatistics
from isomerge.merging.merge_plan import MergePlan
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import make_plan
from isomerge.observe.live.module_state import state_of
from isomerge.observe.live.modules import load_module
from isomerge.records import Json
from isomerge.run.streaming import UnitSolver, stream_units
from isomerge.run.unit_work import WholeSolver
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.match_inputs import open_given
from isomerge.solve.pairs.pair import PairSolver, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block


@dataclass(frozen=True)
class RunFusion:
    """What came of a fusion that runs the aligned models."""

    results: Sequence[Sequence[UnitResult]]
    """What moved the sources, unit by unit."""
    moves: Sequence[Alignment | None]
    """The same as a whole, where they were moved."""
    report: Json
    """What the method tells."""
    said: Sequence[tuple[str, str]] = ()
    """What it tells of tensors, by their names."""


def fuse_forward(plan: MergePlan, stream: StreamWriter, used: Sequence[UnitSolver], key: str) -> RunFusion:
    """Fuse by running the aligned models, and write the result.

    Methods of statistics gather them on the aligned models; others give the merged parameters themselves.
    REPAIR, where it has data, has the last word. Of what is ``used`` to bring units together, those count that move
    whole models.
    """
    fuser, matching, repair = plan.fuser, plan.matching, plan.request.repair
    solvers = [solver for solver in used if isinstance(solver, WholeSolver)]
    fusion, donor = fuser.fusion, stream.donor
    device = matching.settings.device if matching.settings else "cpu"
    stored = [solvers[0].anchor, *(solver.source for solver in solvers)] if solvers else [donor]
    stored = [stored[k] for k in fuser.places]
    models, results, moves = stored, [[] for _ in solvers], list[Alignment | None]()
    if plan.matches:
        models, results, moves = write_endpoints(stream, solvers, key)
        models = [models[k] for k in fuser.places]
        by = [None, *moves]
        if fuser.statistics is not None:
            fuser = replace(fuser, moved_by=[by[k] for k in fuser.places])
    fuser = replace(fuser, places=())  # models are in the run's order from here on
    if any(model.checkpoint.lent for model in stored):
        # where vocabularies differ
        from isomerge.models.vocabulary_views import with_moved_rows

        models = with_moved_rows(stored, models)
    first = models[0]  # the donor, which is moved as well where another model is the anchor
    option = "--repair" if matching.data is None else "--data"
    examples = open_given(repair if matching.data is None else matching.data, donor, matching, option=option)
    run = Forward(
        models[fusion.start :], stored[fusion.start :], examples, device, stream.output.observer, plan.matches
    )
    report, said = Json(), list[tuple[str, str]]()
    if fusion.method.forward:
        module, report = fusion.method.run_models(run, {o.keyword: v for o, v in fuser.options(None)})
    else:
        if fusion.method.statistics is not None and fuser.statistics is None:
            fuser = replace(fuser, statistics=_gathered(stream, run, fusion))
        still = make_plan(first, models[1:], "none")
        again = [PairSolver(first, model, still, fuser.dtype, guard=False) for model in models[1:]]
        if repair is None:
            said = said_of(stream_units(stream, again, still, fuser.fuse, first))
            return RunFusion(results, moves, report, said)
        fused = write_fused(stream, first, again, still, fuser.fuse, fuser.dtype, key)
        said += map(tuple, (stream.done("fused") or {}).get("notes", []))
        module = load_module(fused, run.dtype, device)
    if repair is not None:
        weights = fusion.weights(len(models))[fusion.start :]
        examples = open_given(repair, donor, matching, option="--repair")
        repaired = mended(module, run.endpoints, weights, examples, observer=run.observer)
        report = {**report, "repair": {"layers": repaired.layers, "kept": repaired.kept}}
    _write_module(stream, models[fusion.start :], first, fuser, module, repaired=repair is not None)
    return RunFusion(results, moves, report, said)


def _write_module(
    stream: StreamWriter, models: Sequence[Model], first: Model, fuser: Fuser, module: nn.Module, *, repaired: bool
) -> None:
    """The blocks of the merge as a live module has them, unit by unit; what it has no weight for is the first
    model's.

    Raises:
        IsomergeError: a tensor that ``models``, those that are merged, do not explain.
    """
    ready = state_of(module, first)
    for unit in fuser.plan.units:
        if stream.done(unit.key) is None:
            blocks = {block: _ready(first, block, ready, fuser.dtype) for block in unit.blocks}
            theirs = [m.unit(unit.blocks, fuser.dtype) for m in models]
            fuser.check(blocks, theirs, fuser.options(unit.blocks[0]), repaired=repaired)
            for block, tensor in blocks.items():
                stream.put(block, tensor)
            stream.writer.commit(unit.key, {})


def _gathered(stream: StreamWriter, run: Forward, fusion: Fusion) -> FusionStatistics:
    """The statistics that a method asks for, of the aligned models on the match's data."""
    folder = stream.writer.blob("statistics")
    folder.mkdir(exist_ok=True)
    assert fusion.method.statistics is not None
    kinds = [STATISTICS[fusion.method.statistics]]
    return FusionStatistics.gathered(
        run.models, [run.examples], kinds, folder, device=run.device, observer=run.observer
    )


def _ready(first: Model, block: Block, ready: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """A block of a merged module; what the module has no weight for is the first model's."""
    own = first.assemble(block, dtype)
    if not own.is_floating_point() or not all(first.names.get(c, "") in ready for c in block.canonical):
        return own
    return block.assemble(lambda canonical: ready[first.names[canonical]].to("cpu", dtype))
