"""Writing a model that is another view of one that was read (wider, of another vocabulary), block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomerge.evidence.card import model_card
from isomerge.evidence.parents import parents_of
from isomerge.models.recognised import Model
from isomerge.run.run_report import report_of
from isomerge.run.writing_run import Output, StreamWriter, run_key


def write_view(
    model: Model, output: Output, command: str, title: str, text: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a view as an ordinary checkpoint; a killed run goes on where it stopped.

    Args:
        model: the view, recognised.
        output: where and how.
        command: what wrote it.
        title, text: of the model card.
        about: what the report has beside what every report has.

    Returns:
        The report.
    """
    key = run_key(command, [model], output.dtype, output.out_shard_size)
    total = model.checkpoint.nbytes
    with StreamWriter(model, output, key) as stream:
        for number, block in enumerate(model.blocks):
            output.observer(block.key, number * total // len(model.blocks), total)
            if stream.done(block.key) is None:
                stream.put(block, model.assemble(block, None))
                stream.commit(block.key, {})
        report = report_of(command, [model], [])
        del report["distance"]  # nothing was moved
        notes = [*about.get("notes", ()), *report.get("notes", ())]
        report |= {**about, "notes": notes}
        parents = parents_of([model.checkpoint])
        stream.finish(report, {}, model_card(title, [model.ref], text, report, parents=parents))
    return report
