"""The report of a run: what was read, and how far every tensor was from its counterpart, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch

from isomerge import __version__
from isomerge.arithmetic import arithmetic_notes, arithmetic_record
from isomerge.evidence.distance import risen_note, summarise, why_risen
from isomerge.evidence.report.spaces import plain_names
from isomerge.models.recognised import Model
from isomerge.options import unused
from isomerge.plug_ins.command import with_used
from isomerge.run.absolute_names import absolute_path, absolute_ref
from isomerge.run.provenance import input_rows
from isomerge.solve.pairs.pair import UnitResult, rows_of
from isomerge.symmetry.fixed import fixed_parts


def report_of(
    what: str,
    models: Sequence[Model],
    results: Sequence[list[UnitResult]],
    beside: Iterable[Model] = (),
    /,
    **more: Any,
) -> dict[str, Any]:
    """The report of a run: ``distance`` over all sources, and ``sources`` one by one; ``inputs`` are the files of
    the models and of those ``beside`` them.
    """

    names = plain_names(models[0].declared)
    each = [summarise(rows_of(r), names) for r in results]
    report: dict[str, Any] = {
        "command": what,
        "models": [m.ref for m in models],
        "paths": [absolute_ref(m.ref) for m in models],
        "architecture": models[0].spec.model_type,
        **({} if models[0].spec_file is None else {"spec": absolute_path(models[0].spec_file)}),
        "versions": {"isomerge": __version__, "torch": torch.__version__, "transformers": version("transformers")},
        "arithmetic": arithmetic_record(),
        "distance": each[0] if len(each) == 1 else summarise([row for r in results for row in rows_of(r)], names),
        "inputs": input_rows(model.checkpoint for model in (*models, *beside)),
        "dead_blocks": sorted({key for r in results for unit in r for key in unit.dead}),
        "fixed": fixed_parts(models[0].spec, models[0].matches.values()),
        **more,
    }
    whose = [m.ref if len(each) > 1 else "" for m in models[1:]]
    risen = [note for d, name in zip(each, whose, strict=False) for note in risen_note(d, why_risen(report), name)]
    if notes := [*arithmetic_notes(), *risen, *unused.notes()]:
        report["notes"] = [*report.get("notes", ()), *notes]
    with_used(report)
    if len(each) > 1:
        report["sources"] = [{"model": m.ref, "distance": d} for m, d in zip(models[1:], each, strict=True)]
    return report
