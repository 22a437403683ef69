"""Planned merges of pipelines and single files run: component by component, into a folder that takes its place when
all are done."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.output_folder import PartialFolder
from isomerge.checkpoint.pipeline import Component
from isomerge.checkpoint.pushing import check_push, push
from isomerge.checkpoint.weights import find_weights, weights_name
from isomerge.commands.opening import dtype_name
from isomerge.commands.pipeline_merges import ComponentMerge, PipelineMerge
from isomerge.errors import IsomergeError, UnfinishedError
from isomerge.evidence.card import RECIPE, model_card
from isomerge.evidence.parents import CARD, parent_of
from isomerge.files import disk_errors, write_whole
from isomerge.models.references import open_model_ref
from isomerge.models.stored_form import cast, out_code
from isomerge.options import OutputOptions
from isomerge.records import Json, Record, as_json
from isomerge.run.report_file import PIPELINE_REPORT, REPORTS, signed

MERGED, COPIED = "merged", "copied"


def run_pipeline(
    merge: PipelineMerge,
    writing: OutputOptions,
    run: Callable[[ComponentMerge, Path, OutputOptions], Record],
) -> Json:
    """Merge and copy the components, and put the pipeline in its place; the report.

    A run that was stopped is gone on with: components that are complete are kept.

    Args:
        merge: what becomes of the components.
        writing: how the output is written.
        run: merges a component into a folder; its report.

    Raises:
        IsomergeError: a component cannot be merged; nothing is written.
    """
    check_push(writing.push_to_hub)
    own = replace(writing, push_to_hub=None, private=False, overwrite=False)
    rows: dict[str, Json] = {}
    with _unfinished(merge, writing) as partial:
        for component in merge.components:
            place, record = partial.blobs / component.name, partial.blobs / f"{component.name}.made.json"
            if record.is_file():
                rows[component.name] = json.loads(record.read_bytes())
                continue
            row: Json = {"how": COPIED if component.source is None else MERGED, "said": component.said}
            if component.source is not None:
                row["report"] = as_json(run(component, place, own))
            elif component.copied is not None:
                shutil.rmtree(place, ignore_errors=True)
                _copy(component.copied, place, dtype_name(writing.dtype))
                row["from"] = component.copied.ref
            with disk_errors(record):
                write_whole(record, json.dumps(row, default=str).encode())
            rows[component.name] = row
        report = _report(merge, rows)
        with disk_errors(partial.model):
            _assemble(merge, partial)
            short = {n: {k: v for k, v in row.items() if k != "report"} for n, row in rows.items()}
            write_whole(partial.model / PIPELINE_REPORT, signed({**report, "components": short})[0])
            write_whole(partial.model / RECIPE, merge.recipe.encode())
            if not (partial.model / CARD).exists():  # a model with parts of its own has one
                write_whole(partial.model / CARD, _card(merge, report).encode())
        partial.publish()
    if writing.push_to_hub is not None:
        push(merge.out, writing.push_to_hub, private=writing.private, message=f"Made by isomerge: {merge.out.name}")
    return report


def _copy(part: Component, place: Path, dtype: str | None) -> None:
    """Put a component into a folder of its own, its weights in the dtype that is asked for; one that goes from a
    single file into another as it is stays where it is.

    Raises:
        IsomergeError: a weight does not fit into the dtype.
    """
    if not part.is_variant and not (dtype and part.has_weights):
        part.copy(place, allow_pickle=True)
        return
    source = open_model_ref(part.place, allow_pickle=True)
    codes = {name: out_code(info.dtype, dtype) for name, info in source.tensors.items()}
    if not part.is_variant and all(code == source.tensors[name].dtype for name, code in codes.items()):
        part.copy(place, allow_pickle=True)
        return
    with disk_errors(place):
        place.mkdir()
        write_companions(place, {CONFIG: config_bytes(source.config), **part.companions(allow_pickle=True)})
    file = GrowingFile(place / "tensors")
    for name, code in codes.items():
        file.add(name, cast(source.read(name), code, name))
    file.finish(place / weights_name(source.config))


def _assemble(merge: PipelineMerge, partial: PartialFolder) -> None:
    """Put the components where the whole has them. Raises OSError."""
    whole = merge.whole
    if not whole.is_whole:
        for component in merge.components:
            os.rename(partial.blobs / component.name, partial.model / component.name)
        index = partial.model / whole.index.name
        shutil.copyfile(whole.index, index)
        content = json.loads(index.read_bytes())
        others = {n: [c.library, c.kind] for n, c in whole.components.items() if c.folder.parent != whole.folder}
        if others:  # which only other pipelines have
            index.write_text(json.dumps({**content, **others}, indent=2) + "\n")
        return
    folders = {part.name: partial.blobs / part.name for part in merge.components}
    made = {name: folder for name, folder in folders.items() if folder.is_dir()}
    copied = {part.name: part.copied for part in merge.components if part.copied is not None}
    whole.write(partial.model / whole.index.name, made, copied)
    for name in (part.name for part in merge.components if part.source is not None):
        folder = made[name]  # how it was merged; the weights are in the file
        weights = find_weights(folder, allow_pickle=False)
        for path in {*weights.files, weights.source, folder / "config.json"}:
            path.unlink()
        (partial.model / REPORTS).mkdir(exist_ok=True)
        os.rename(folder, partial.model / REPORTS / name)


def _card(merge: PipelineMerge, report: Json) -> str:
    """The model card of the whole; merged components have cards of their own."""
    parents = [
        parent_of(each.folder, each.ref, read_object(each.index, remedy="", unique=False))
        if each.folder.is_dir()
        else parent_of(None, each.ref, {"_diffusers_version": ""})
        for each in merge.pipelines
    ]
    places = {name: merge.place(name).relative_to(merge.out) for name in report["components"]}
    rows = [
        f"- {name}: {row['said'] or row['how']}" + (f" ([how]({places[name]}/{CARD}))" if "report" in row else "")
        for name, row in report["components"].items()
    ]
    text = "\n".join([f"{merge.summary[:1].upper()}{merge.summary[1:]} Made by isomerge.", "", *rows])
    refs = [each.ref for each in merge.pipelines]
    return model_card("Merged pipeline", refs, text, report, parents=parents, recipe=merge.recipe)


def _report(merge: PipelineMerge, rows: Mapping[str, Any]) -> Json:
    """What is told of the whole."""
    return {
        "command": "merge",
        "pipeline": merge.whole.kind,
        "models": [pipeline.ref for pipeline in merge.pipelines],
        "components": dict(rows),
        "notes": list(merge.lines()),
    }


@contextmanager
def _unfinished(merge: PipelineMerge, writing: OutputOptions) -> Iterator[PartialFolder]:
    """The folder in which the pipeline grows: as an earlier, stopped run of the same merge left it, or empty."""
    reads = [place for pipeline in merge.pipelines for place in pipeline.reads]
    partial = PartialFolder(merge.out, overwrite=writing.overwrite, reads=reads)
    key = merge.key().encode()
    try:
        with disk_errors(partial.root):
            goes_on = partial.journal.is_file() and partial.is_ours() and partial.journal.read_bytes() == key
        if not goes_on:
            partial.begin()
            with disk_errors(partial.journal):
                write_whole(partial.journal, key)
        yield partial
    except IsomergeError as error:
        if not isinstance(error, UnfinishedError):
            partial.discard()
        raise
    finally:
        partial.release()
