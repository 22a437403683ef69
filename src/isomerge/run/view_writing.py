"""Writing a model that is another view of one that was read (wider, of another vocabulary), block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from isomerge.evidence.card import model_card
from isomerge.evidence.parents import parents_of
from isomerge.models.recognised import Model
from isomerge.records import Record, inline
from isomerge.run.run_report import RunReport, run_notes, run_of
from isomerge.run.writing_run import Output, StreamWriter, run_key

A = TypeVar("A", bound=Record | None)


class ViewReport(RunReport, Generic[A], kw_only=True):
    """What is said of a model that was written as another view of it."""

    about: A = inline()


def write_view(
    model: Model, output: Output, command: str, title: str, text: str, about: A, notes: Sequence[str] = ()
) -> ViewReport[A]:
    """Write a view as an ordinary checkpoint; a killed run goes on where it stopped.

    Args:
        model: the view, recognised.
        output: where and how.
        command: what wrote it.
        title, text: of the model card.
        about, notes: what the report has beside what every report has.
    """
    key = run_key(command, [model], output.dtype, output.out_shard_size)
    with StreamWriter(model, output, key) as stream:
        write_blocks(stream, model)
        report = ViewReport(run=run_of(command, [model]), notes=run_notes(notes), about=about)
        parents = parents_of([model.checkpoint])
        card = model_card(title, [model.ref], text, report.document(), parents=parents)
        return stream.finish(report, {}, card)


def write_blocks(stream: StreamWriter, model: Model) -> None:
    """Every block of a view that an earlier run has not written."""
    total = model.checkpoint.nbytes
    for number, block in enumerate(model.blocks):
        stream.observer(block.key, number * total // len(model.blocks), total)
        if stream.done(block.key) is None:
            stream.put(block, model.unrounded(block))
            stream.commit(block.key, {})
