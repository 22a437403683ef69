"""Measuring whether a merge is possible: lines and planes between recognised models, as stored and aligned."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import ensemble, evaluator, line_report, plane_report
from isomerge.evidence.line import Line, draw_lines, loss_line
from isomerge.evidence.plane import Plane, draw_planes, loss_plane
from isomerge.evidence.relation import Level, Pair
from isomerge.evidence.report.verdict import graded, slight
from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.substitution import module_as_told
from isomerge.observe.losses import logits_of
from isomerge.run.alignment_runs import run_align
from isomerge.run.barrier_options import BarrierOptions, Way
from isomerge.run.forward_cost import held_while_aligning
from isomerge.run.run_verdict import measured, planned_report, verdict_document
from isomerge.run.writing_run import Output
from isomerge.symmetry.fixed import fixed_parts

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
    pairs: Sequence[Pair], models: Sequence[Model], report: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """What the models of a barrier are to each other; what to try beside measuring the barrier, as long as the
    report shows no line without one."""
    refs = list(dict.fromkeys(ref for pair in pairs for ref in (pair.anchor, pair.model)))
    verdict = verdict_document(pairs, planned_report("merge", refs), models)
    if verdict is not None:
        flat = report is not None and any(_is_flat(line, report["unit"]) for line in report.get("lines", ()))
        steps = [step for step in verdict["next"] if not step["command"].startswith("isomerge barrier")]
        verdict["next"] = [] if flat else steps
    return verdict


def _is_flat(line: Mapping[str, Any], unit: str) -> bool:
    rise, drop = line["barrier"]["entezari"], (line["accuracy_drop"] or {}).get("entezari", 0.0)
    return graded(rise, drop, slight(unit, line["losses"])) is Level.GOOD


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
) -> dict[str, Any]:
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
    report: dict[str, Any] = {
        "command": "barrier",
        "models": [model.ref for model in models],
        "data": {"examples": len(examples), "fingerprint": examples.fingerprint},
        "fixed": fixed_parts(models[0].spec, models[0].matches.values()) if options.ways else [],
    }
    others = [module_as_told(model, options.device) for model in models[1:]]
    together = ensemble([anchor, *others], examples, options.batch_size)
    report["ensemble"] = asdict(together)
    report["unit"] = together.unit
    between = _between(anchor, run, options, len(names))
    shapes = [(STORED, between(STORED, others))]
    del others  # before the next modules are read
    distances: list[Any] = [None]
    for way, name in zip(options.ways, names[1:], strict=False):
        with _aligned(models, way, options.max_memory) as (folders, reports):
            pairs = [measured([pair], report)[0] for pair, report in zip(pairs, reports, strict=False)]
            distance = [{key: report["distance"][key] for key in ("before", "after")} for report in reports]
            own = models[0].checkpoint.own
            moved = [load_module(folder, device=options.device, own=own) for folder in folders]
        shapes.append((name, between(name, moved)))
        distances.append(distance)
        del moved
    for model in aligned:
        shapes.append((model.ref, between(model.ref, [module_as_told(model, options.device)])))
        distances.append(None)
    report |= {"notes": list(notes)} | _summary(shapes, distances, models, together, report["unit"], options.png)
    return report | {"verdict": barrier_verdict(pairs, models, report)}


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
) -> Iterator[tuple[list[Path], list[dict[str, Any]]]]:
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
            _, report = run_align(model, models[0], output, spaces=way.spaces, matching=way.matching)
            folders.append(output.out)
            reports.append(report)
        yield folders, reports


def _summary(
    shapes: Sequence[tuple[str, Line | Plane]],
    distances: Sequence[Any],
    models: Sequence[Model],
    together: Any,
    unit: str,
    png: Path | None,
) -> dict[str, Any]:
    """The report of lines or planes; and the picture."""
    lines = [(name, x) for name, x in shapes if isinstance(x, Line)]
    planes = [(name, x) for name, x in shapes if isinstance(x, Plane)]
    ends = [Path(model.ref).name for model in models]
    ends = ends if len(set(ends)) == len(ends) and all(ends) else [model.ref for model in models]
    key, parts = ("lines", [line_report(*pair) for pair in lines]) if lines else ("planes", [])
    parts = parts or [plane_report(*pair) for pair in planes]
    for part, distance in zip(parts, distances, strict=True):
        if distance is not None:
            part["distances"] = distance
    if png is not None and lines:
        title = f"The line between {ends[0]} and {ends[1]}"
        level = (together.loss, together.accuracy or 0.0)
        draw_lines(lines, (ends[0], ends[1]), png, title, loss=f"loss ({unit})", ensemble=level)
    elif png is not None:
        draw_planes(planes, ends, png, f"loss ({unit})")
    return {key: parts}
