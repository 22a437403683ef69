"""What the commands do, on recognised models: align, apply, merge."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from isomerge.engine.many_solutions import check_anchor, prepare_mean
from isomerge.engine.models import Model, check_compatible, working_dtype
from isomerge.engine.pair import PairSolver
from isomerge.engine.plan import gives_out_streams, make_plan, unit_layer
from isomerge.engine.run import (
    Output,
    StreamWriter,
    elements_of_results,
    prepare_votes,
    report_of,
    run_key,
    stream_units,
    write_alone,
)
from isomerge.engine.solutions import WEIGHTS, Matching, prepare_solutions
from isomerge.errors import IsomergeError
from isomerge.evidence.card import model_card
from isomerge.evidence.distance import summarise
from isomerge.fusion.registry import method as merge_method
from isomerge.matching.local import squared_distance, squared_norm
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.shifts import find_shifts
from isomerge.symmetry.units import Unit, elements_of, plan_units

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def run_align(
    source: Model,
    anchor: Model,
    output: Output,
    *,
    spaces: str = "default",
    layers: str | None = None,
    matching: Matching = WEIGHTS,
) -> tuple[Alignment, dict[str, Any]]:
    """Write the source in the weights closest to the anchor's; returns the alignment and the report."""
    check_compatible(anchor, [source])
    matching.check(1, spaces)
    matching.check_files([anchor, source])
    plan = make_plan(source, [anchor], spaces, layers)
    dtype = working_dtype([anchor, source])
    solver = PairSolver(anchor, source, plan, dtype, guard=True)
    key = run_key(
        "align",
        [source, anchor],
        spaces,
        layers,
        output.dtype,
        output.shard_size,
        plan.selection.spec.origin,
        matching.key(anchor),
    )
    with StreamWriter(source, output, key) as stream:
        streams = prepare_solutions(stream, [solver], matching)
        if not streams:
            prepare_votes(stream, [solver])
        results = stream_units(stream, [solver], plan, lambda block, tensors: tensors[1], anchor)
        write_alone(stream, plan, source, dtype, solver.given)
        alignment = solver.alignment(elements_of_results(results[0]))
        report = report_of(
            "align",
            [anchor, source],
            results,
            spaces=spaces,
            layers=layers,
            streams=streams,
            notes=list(plan.selection.notes),
        )
        text = (
            "The same function as the second model, in other weights: moved along its symmetry orbit to the point "
            "closest to the first. Made by isomerge."
        )
        card = model_card("Aligned checkpoint", [anchor.ref, source.ref], text, report)
        stream.finish(report, {"alignment.safetensors": alignment}, card)
    return alignment, report


def run_apply(alignment: Alignment, model: Model, output: Output, *, name: str = "given") -> dict[str, Any]:
    """Replay an alignment on a model and write it."""
    spec = alignment.spec
    here = {key for block in model.blocks for key in elements_of(spec, block)}
    here |= {key for _, key, _ in find_shifts(spec, model.blocks)}
    if strange := sorted({key.rpartition(":")[2] for key in alignment} - here):
        raise IsomergeError(
            f"{model.ref}: the alignment {name} moves {strange[0]}, which this model does not have: it was made for another one"
        )
    _check_moves(alignment, model, name)
    dtype = working_dtype([model])
    rows: list[dict[str, Any]] = []
    units = plan_units(spec, model.blocks)
    total = model.checkpoint.nbytes
    key = run_key("apply", [model], output.dtype, output.shard_size, alignment.digest())
    with StreamWriter(model, output, key) as stream:
        for number, unit in enumerate(units):
            output.observer(unit.key, number * total // len(units), total)
            record = stream.done(unit.key)
            if record is None:
                record = {"rows": _apply_unit(alignment, model, unit, stream, dtype)}
                stream.writer.commit(unit.key, record)
            rows += record["rows"]
        report = {**report_of("apply", [model], []), "distance": summarise(rows)}
        text = (
            "The same function as the model below, in other weights: an alignment was replayed. Made by isomerge."
        )
        stream.finish(
            report, {"alignment.safetensors": alignment}, model_card("Moved checkpoint", [model.ref], text, report)
        )
    return report


def _check_moves(alignment: Alignment, model: Model, name: str) -> None:
    """Refuse an alignment that would change the function: of a tied head, or of the stream that a model gives out."""
    moved = {key.rpartition(":")[2].partition("[")[0] for key in alignment}
    if lost := sorted((moved & model.declared.spaces.keys()) - model.spec.spaces.keys()):
        raise IsomergeError(
            f"{model.ref}: the alignment {name} moves {lost[0]}, which the head's tie to the embeddings does not allow: "
            "apply it with --untie"
        )
    if moved & set(model.spec.streams) and gives_out_streams(model):
        raise IsomergeError(
            f"{model.ref}: the alignment {name} turns the residual stream, which this model has no head to read: its "
            "outputs would change; apply it to a model with a head"
        )


def _apply_unit(
    alignment: Alignment, model: Model, unit: Unit, stream: StreamWriter, dtype: torch.dtype
) -> list[dict[str, Any]]:
    """Move and write one unit; returns its rows of the report: how far every tensor moved."""
    tensors = {block: model.assemble(block, dtype) for block in unit.blocks}
    old = {block: tensor.clone() for block, tensor in tensors.items()}
    alignment.act(tensors)
    rows = []
    for block, tensor in tensors.items():
        stream.put(block, tensor)
        figures = {"norm": squared_norm(tensor), "before": 0.0, "after": squared_distance(tensor, old[block])}
        rows.append({"tensor": block.key, "spaces": [], "layer": unit_layer(unit), **figures})
    return rows


def check_merge(count: int, method: str, weights: Sequence[float] | None) -> list[float]:
    """The weights of a merge of ``count`` models, checked before anything is read.

    Raises:
        IsomergeError: too few models, an unknown method, or weights that cannot be used.
    """
    if count < 2:
        raise IsomergeError("merge needs at least two models: name another one")
    merge_method(method)
    weights = [1.0] * count if weights is None else [float(w) for w in weights]
    if len(weights) != count or not all(map(isfinite, [*weights, sum(weights)])) or sum(weights) == 0:
        raise IsomergeError(f"--weights: {count} numbers are needed that do not sum to zero, got {weights}")
    return weights


def check_aligned(align: bool, matching: Matching) -> None:
    """Refuse to look at data for a match that is not made.

    Raises:
        IsomergeError: naming the option.
    """
    if not align and matching.needs_models:
        raise IsomergeError("--no-align leaves nothing to match by data: leave it away, or the data")


def run_merge(
    models: Sequence[Model],
    output: Output,
    *,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    align: bool = True,
    spaces: str = "default",
    layers: str | None = None,
    matching: Matching = WEIGHTS,
    anchor: str = "first",
) -> dict[str, Any]:
    """Align every model onto the first, fuse them, and write the result; returns the report.

    With ``anchor="none"`` all models are matched onto their common mean instead (`isomerge.engine.many`), which is
    written in the first model's coordinates.
    """
    weights = check_merge(len(models), method, weights)
    check_anchor(anchor, matching, spaces)
    donor, *others = models
    fuse = merge_method(method)
    check_compatible(donor, others)
    chosen = spaces if align else "none"
    plan = make_plan(donor, others, chosen, layers)
    dtype = working_dtype(models)
    # unguarded: the merge must be a function of the orbits, whatever gauges the checkpoints are stored in
    solvers = [PairSolver(donor, other, plan, dtype, guard=False) for other in others]
    check_aligned(align, matching)
    matching.check(len(others), chosen)
    matching.check_files(models)
    settings = (method, weights, chosen, layers, output.dtype, output.shard_size, matching.key(donor), anchor)
    key = run_key("merge", models, *settings)

    def combine(block: Block, tensors: list[Tensor]) -> Tensor:
        return fuse(tensors, weights=weights) if tensors[0].is_floating_point() else tensors[0]

    with StreamWriter(donor, output, key) as stream:
        mean = prepare_mean(stream, solvers, matching, weights) if align and anchor == "none" else None
        streams = prepare_solutions(stream, solvers, matching) if mean is None else []
        if not streams and mean is None:
            prepare_votes(stream, solvers)
        results = stream_units(stream, solvers, plan, combine, donor)
        write_alone(stream, plan, donor, dtype)
        kept = [block.key for block in plan.alone]
        report = report_of(
            "merge",
            models,
            results,
            method=method,
            weights=weights,
            align=align,
            spaces=chosen,
            layers=layers,
            kept_from_first=kept,
            streams=streams,
            **({"anchor": "none", "mean": mean} if mean is not None else {}),
            notes=list(plan.selection.notes),
        )
        how = "Each was first aligned onto the first along its symmetries. " if align else "They were not aligned. "
        if mean is not None:
            how = "All were first matched onto their common mean along their symmetries. "
        text = f"The `{method}` merge of the models below, with weights {weights}. {how}Made by isomerge."
        alignments = {}
        if align:
            for k, (solver, result) in enumerate(zip(solvers, results, strict=True), 2):
                name = "alignment.safetensors" if len(solvers) == 1 else f"alignment-{k}.safetensors"
                alignments[name] = solver.alignment(elements_of_results(result))
        stream.finish(report, alignments, model_card("Merged checkpoint", [m.ref for m in models], text, report))
    return report
