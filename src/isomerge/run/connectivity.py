"""Measuring whether a merge is possible: lines and planes between recognised models, as stored and aligned."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isnan
from pathlib import Path

from torch import nn

from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import LineReport, PlaneReport, ensemble, evaluator
from isomerge.evidence.line import Line, draw_lines, loss_line
from isomerge.evidence.plane import Plane, draw_planes, loss_plane
from isomerge.evidence.relation import Level, Pair
from isomerge.evidence.report.verdict import graded, slight
from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.substitution import module_as_told
from isomerge.observe.losses import Figures, Measure, logits_of
from isomerge.records import Change, Record, optional
from isomerge.run.alignment_runs import AlignReport, plan_align
from isomerge.run.barrier_options import BarrierOptions, Way
from isomerge.run.forward_cost import held_while_aligning
from isomerge.run.run_verdict import RunVerdict, measured, planned_facts, verdict_on
from isomerge.run.writing_run import Output
from isomerge.symmetry.fixed import FixedPart, fixed_parts

STORED = "as stored"


def untied_alike(models: Sequence[Model], spec: str | Path | None = None) -> tuple[list[Model], list[str]]:
    """Models with heads alike: where one has a head of its own, and others share it with the embeddings, theirs
    become tensors of their own, in memory; their functions are the same.

    Args:
        models: of one architecture.
        spec: the file that describes it, where one was given.

    Returns:
        The models, and what the user called those that were untied.

    Raises:
        IsomergeError: see `isomerge.models.recognised.recognise`.
    """
    apart = [model.has_own_head for model in models]
    if not any(apart):
        return list(models), []
    alike = [
        model if own else recognise(model.checkpoint, spec_file=spec, untie=True)
        for model, own in zip(models, apart, strict=True)
    ]
    return alike, [new.ref for new, old in zip(alike, models, strict=True) if len(new.names) > len(old.names)]


def barrier_verdict(
    pairs: Sequence[Pair], models: Sequence[Model], lines: Sequence[LineReport] = (), unit: str = ""
) -> RunVerdict | None:
    """What the models of a barrier are to each other; what to try beside measuring the barrier, as long as none of
    the lines that were measured is without one."""
    refs = list(dict.fromkeys(ref for pair in pairs for ref in (pair.anchor, pair.model)))
    verdict = verdict_on(pairs, planned_facts("merge", refs), models)
    if verdict is None:
        return None
    flat = any(_is_flat(each.line, unit) for each in lines)
    steps = [step for step in verdict.next if not step.command.startswith("isomerge barrier")]
    return replace(verdict, next=[] if flat else steps)


def _furthest(pairs: Sequence[Pair]) -> tuple[int, int, float]:
    """How far from its anchor the model is that is furthest, by its relation, then by its distance."""
    every = [(pair.level, -1 if pair.relation is None else pair.relation, pair.after or 0.0) for pair in pairs]
    return max(every, default=(0, -1, 0.0))


def _is_flat(line: Line, unit: str) -> bool:
    drop = line.accuracy_drops["entezari"]
    return graded(line.barrier, 0.0 if isnan(drop) else drop, slight(unit, line.losses)) is Level.GOOD


class DataReport(Record):
    """What was read."""

    examples: int
    fingerprint: str


class BarrierReport(Record, kw_only=True):
    """Losses between two models, or among three."""

    command: str = "barrier"
    models: Sequence[str]
    data: DataReport
    fixed: Sequence[FixedPart]
    ensemble: Measure
    unit: str
    notes: Sequence[str]
    lines: Sequence[LineReport] | None = optional()
    planes: Sequence[PlaneReport] | None = optional()
    verdict: RunVerdict | None
    untied: Sequence[str] | None = optional()
    """The models whose head was given weights of its own, as that of another one has them."""
    chance: float | None = optional()
    """The loss of a guess that takes all outcomes for equally likely; absent where none is right or wrong."""
    merged: Figures | None = optional()
    """Of an output, the merge itself."""


def check_labelled(examples: Examples | None) -> None:
    """Raise an IsomergeError for data without labels."""
    if examples is None or not examples.labelled:
        raise IsomergeError("--data has no labels, so there is no loss: give a label with every example")


def run_barrier(
    models: Sequence[Model],
    examples: Examples,
    options: BarrierOptions,
    aligned: Sequence[Model] = (),
    pairs: Sequence[Pair] = (),
    notes: Sequence[str] = (),
) -> BarrierReport:
    """Measure the loss between two models (a line), or among three (a plane), as stored and after alignment.

    Every model runs in float32; no more than one module more than the models is in memory at a time. Aligned
    checkpoints are written into a temporary folder, one selection at a time, and deleted.

    Args:
        models: two or three; the others are aligned onto the first.
        examples: labelled.
        aligned: checkpoints that something else has aligned onto the first: a line to each is added.
        pairs: what is known of every model and the first.
        notes: what to tell of the choice of spaces.

    Raises:
        IsomergeError: models that do not fit together, wrong options, or data without labels.
    """
    options.check(models, aligned)
    anchor = module_as_told(models[0], options.device)
    if not examples.labelled:
        logits_of(anchor, next(examples.batches(1)))  # of a model without a head, labels would not help
        check_labelled(examples)
    run = evaluator(examples, options.batch_size)
    names = [STORED, *(f"aligned, {way.name}" for way in options.ways), *(model.ref for model in aligned)]
    fixed = fixed_parts(models[0].spec, models[0].matches.values()) if options.ways else []
    others = [module_as_told(model, options.device) for model in models[1:]]
    together = ensemble([anchor, *others], examples, options.batch_size)
    between = _between(anchor, run, options, len(names))
    shapes: list[tuple[str, Line | Plane, Sequence[Change] | None]] = [(STORED, between(STORED, others), None)]
    del others  # before the next modules are read
    by_way: list[list[Pair]] = []
    for way, name in zip(options.ways, names[1:], strict=False):
        with _aligned(models, way, options.max_memory) as (folders, reports):
            spreads = [report.moves.distance for report in reports]
            named = way.option if len(options.ways) > 1 else ""
            by_way.append([replace(pair, way=named) for pair in measured(pairs, spreads)])
            distance = [Change(spread.total.before, spread.total.after) for spread in spreads]
            own = models[0].checkpoint.own
            moved = [load_module(folder, device=options.device, own=own) for folder in folders]
        shapes.append((name, between(name, moved), distance))
        del moved
    for model in aligned:
        shapes.append((model.ref, between(model.ref, [module_as_told(model, options.device)]), None))
    lines = [LineReport(name, line=shape, distances=d) for name, shape, d in shapes if isinstance(shape, Line)]
    planes = [PlaneReport(name, plane=shape, distances=d) for name, shape, d in shapes if isinstance(shape, Plane)]
    if options.png is not None:
        _draw(lines, planes, models, together, options.png)
    return BarrierReport(
        models=[model.ref for model in models],
        data=DataReport(len(examples), examples.fingerprint),
        fixed=fixed,
        ensemble=together,
        unit=together.unit,
        notes=notes,
        lines=lines or None,
        planes=planes or None,
        chance=together.chance,
        verdict=barrier_verdict(min(by_way, key=_furthest, default=pairs), models, lines, together.unit),
    )


def _between(
    anchor: nn.Module, run: Callable[[nn.Module], tuple[float, float]], options: BarrierOptions, count: int
) -> Callable[[str, list[nn.Module]], Line | Plane]:
    """A function from other modules to what lies between them and the anchor; tells the observer about every
    point."""
    finished = 0

    def between(name: str, others: list[nn.Module]) -> Line | Plane:
        nonlocal finished
        each = options.points if len(others) == 1 else options.grid**2 + 4

        def observe(done: int) -> None:
            options.observer(name, finished * each + done, count * each)

        try:
            if len(others) == 1:
                shape: Line | Plane = loss_line(anchor, others[0], run, options.points, observe)
            else:
                shape = loss_plane(anchor, others[0], others[1], run, options.grid, observe)
        except IsomergeError as error:
            raise IsomergeError(f"{name}: {error}") from None
        finished += 1
        return shape

    return between


@contextmanager
def _aligned(
    models: Sequence[Model], way: Way, bound: int | None
) -> Iterator[tuple[list[Path], list[AlignReport]]]:
    """The models but the first, aligned onto it, in folders that are deleted afterwards; and the reports.
    ``bound``: bytes for the whole run, of which the alignment has what the first one's module leaves.
    """
    if bound is not None:
        bound -= int(held_while_aligning(models[0]))
    dtype = str(working_dtype(models)).removeprefix("torch.")  # half precisions would round what was aligned
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder:
        folders, reports = [], []
        for number, model in enumerate(models[1:]):
            output = Output(Path(folder) / str(number), dtype=dtype, max_memory=bound)
            _, report = plan_align(model, models[0], output, spaces=way.spaces, matching=way.matching).run()
            folders.append(output.out)
            reports.append(report)
        yield folders, reports


def _draw(
    lines: Sequence[LineReport],
    planes: Sequence[PlaneReport],
    models: Sequence[Model],
    together: Measure,
    png: Path,
) -> None:
    """The picture of the lines, or else of the planes."""
    ends = [Path(model.ref).name for model in models]
    ends = ends if len(set(ends)) == len(ends) and all(ends) else [model.ref for model in models]
    loss = f"loss ({together.unit})"
    if lines:
        title = f"The line between {ends[0]} and {ends[1]}"
        level = (together.loss, together.accuracy or 0.0)
        draw_lines(
            [(each.name, each.line) for each in lines], (ends[0], ends[1]), png, title, loss=loss, ensemble=level
        )
    else:
        draw_planes([(each.name, each.plane) for each in planes], ends, png, loss)
