"""Measuring a finished run on data: the line between the models, as stored and as the run moved them, and the
output."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.evidence.card import alignment_file
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.loss_facts import MOVED
from isomerge.models.recognised import Model, recognise
from isomerge.models.row_meanings import with_tokens_of
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from isomerge.run.alignment_runs import run_apply
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.connectivity import BarrierReport, run_barrier
from isomerge.run.writing_run import Output
from isomerge.solve.match_inputs import data_for
from isomerge.symmetry.alignment import Alignment


def measure(
    written: Written,
    data: str | Path | Examples,
    options: BarrierOptions,
    *,
    limit: int | None = None,
    length: int = 128,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
) -> list[BarrierReport]:
    """Run `isomerge.barrier` on the models of an output, one line per model that was moved.

    The alignment that lies in the output is replayed, so that nothing is matched anew; where nothing was aligned, a
    line after alignment in the default spaces is added, to show what alignment would do. Models of another
    vocabulary than the output's are read in that one.

    Args:
        written: the output; the models that went into it must still be where they were.
        data: labelled examples, or what `isomerge.observe.data.opening_data.open_data` opens for the first model.
        options: of the lines; ``spaces`` is not read.
        limit, length: examples, and tokens per example; see `open_data`.

    Returns:
        Reports of `isomerge.barrier`; the first has the loss and accuracy of a merge itself.

    Raises:
        IsomergeError: a model is gone, or models and data do not fit together.
    """
    assert written.folder is not None
    read = partial(recognise, spec_file=spec, allow_pickle=allow_pickle)
    output = read(written.folder)
    models = with_tokens_of(output, [_source(ref, output, read) for ref in written.matched.paths])
    if not isinstance(data, Examples):
        data = data_for(models[0].checkpoint, str(data), limit=limit, length=length)
    with tempfile.TemporaryDirectory(prefix="isomerge-") as scratch:
        losses = [
            _line(ends, moved, data, replace(options, spaces=[spaces], png=None))
            for ends, moved, spaces in _ends(written, models, output, Path(scratch), read)
        ]
    if written.facts.command == "merge":
        point = evaluate(load_module(output, device=options.device), data, options.batch_size)
        losses[0] = replace(losses[0], merged=point.figures)
    return losses


def _source(ref: str, output: Model, read: Callable[..., Model]) -> Model:
    """A model that went in; with a head of its own where the output has one, and it shares the embeddings."""
    try:
        model = read(ref)
    except IsomergeError as error:
        raise IsomergeError(
            f"--data needs the models that went in, to measure the line between them: {error}; or give "
            f"--barrier FILE"
        ) from None
    if output.has_own_head and not model.has_own_head:
        return read(model.checkpoint, untie=True)
    return model


def _ends(
    written: Written, models: list[Model], output: Model, scratch: Path, read: Callable[..., Model]
) -> Iterator[tuple[list[Model], list[Model] | None, str]]:
    """Lines from the first model that was merged to each of the others: their ends, the same ends as the run moved
    them (None: it moved none), and the spaces to align in beside."""
    facts = written.facts
    if facts.command == "align":
        yield models, [models[0], output], "none"
        return
    if written.earlier is not None:
        yield models, [models[0], *with_tokens_of(output, [read(facts.paths[1])])], "none"
        return
    start = 1 if facts.base and len(models) > 2 else 0
    for k in range(start + 1, len(models)):
        with _moved(written, models, [start, k], scratch, read) as moved:
            yield [models[start], models[k]], moved, "none" if facts.aligned else "default"


@contextmanager
def _moved(
    written: Written, models: list[Model], numbers: list[int], scratch: Path, read: Callable[..., Model]
) -> Iterator[list[Model] | None]:
    """Models as an output's alignments move them, in folders that are deleted afterwards; None without
    alignments."""
    moved, used = [], False
    assert written.folder is not None
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for k in numbers:
            file = written.folder / alignment_file(k + 1, len(models) - 1)
            if k == 0 or not file.is_file():
                moved.append(models[k])
                continue
            output, used = Output(Path(folder) / str(k), dtype="float32"), True
            run_apply(Alignment.load(file, models[k].declared), models[k], output, name=str(file))
            moved.append(read(output.out))
        yield moved if used else None


def _line(ends: list[Model], moved: list[Model] | None, data: Examples, options: BarrierOptions) -> BarrierReport:
    """The report of one line, as stored and as moved."""
    if moved is None:
        return run_barrier(ends, data, options)
    if moved[0] is ends[0]:
        report = run_barrier(ends, data, options, [moved[1]])
        *lines, last = report.lines or []
        return replace(report, lines=[*lines, replace(last, name=MOVED)])
    report = run_barrier(ends, data, options)
    lines = run_barrier(moved, data, options).lines or []
    return replace(report, lines=[*(report.lines or ()), replace(lines[0], name=MOVED)])
