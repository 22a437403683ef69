"""Models moved along their orbits: aligned, by an alignment that is given, to their canonical form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isomerge.commands.opening import destination, recognised
from isomerge.errors import IsomergeError
from isomerge.files import check_file, write_tensors
from isomerge.models.recognised import Model
from isomerge.observe.data.live_data import as_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import outputs_of
from isomerge.options.requests.moving import Align, Apply, Canon, DressingOptions
from isomerge.progress import Observer, quiet
from isomerge.quotient.canonical import Activations, Canonicity, run_canon
from isomerge.quotient.dressing import Dressing
from isomerge.quotient.kinship import kinship
from isomerge.run.alignment_runs import AlignPlan, ApplyReport, plan_align, run_apply
from isomerge.solve.match_checks import files_of_matching, matching_of
from isomerge.solve.match_inputs import data_for
from isomerge.solve.standing import check_align
from isomerge.symmetry.alignment import Alignment

BATCH = 16
"""Examples that are run at a time."""


@contextmanager
def planned_align(asked: Align, observer: Observer = quiet) -> Iterator[AlignPlan]:
    """`isomerge.align` up to where something is matched: opened, checked, nothing written.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong.
    """
    check_align(asked.align)
    if asked.align is False:
        raise IsomergeError("align=False leaves nothing to do: give True or 'auto'")
    opening, moving, match = asked.opening, asked.moving, matching_of(asked.matching)
    reads = (opening.spec, *files_of_matching(match))
    with (
        recognised([asked.source, asked.onto], opening, moving.untie) as (a, b),
        destination(asked.out, asked.writing, [a, b], *reads, running=asked.running, observer=observer) as output,
    ):
        spaces, layers = moving.spaces, moving.layers
        yield plan_align(
            a, b, output, spaces=spaces, layers=layers, matching=match, align=asked.align, kinship=kinship
        )


@dataclass(frozen=True)
class Moving:
    """A model that will be moved; nothing is written."""

    run: Callable[[], Any]
    """Moves and writes it; the report, or the alignment that was found and the report."""


@contextmanager
def planned_apply(asked: Apply, observer: Observer = quiet) -> Iterator[Moving]:
    """`isomerge.apply` up to where something is written.

    Raises:
        IsomergeError: the alignment cannot be read, or is of another architecture.
    """
    alignment, reads = asked.alignment, (asked.opening.spec, asked.alignment)
    with (
        recognised([asked.model], asked.opening, asked.tie.untie) as (model,),
        destination(asked.out, asked.writing, [model], *reads, observer=observer) as output,
    ):
        name = "given" if isinstance(alignment, Alignment) else str(alignment)
        patch = alignment if isinstance(alignment, Alignment) else Alignment.load(alignment, model.declared)
        moved = patch.inverse() if asked.inverse else patch
        yield Moving(lambda: run_apply(moved, model, output, name=name))


@contextmanager
def planned_canon(asked: Canon, observer: Observer = quiet) -> Iterator[Moving]:
    """`isomerge.canon` up to where something is computed.

    Raises:
        IsomergeError: the model cannot be read.
    """
    check_dressing(asked.dressing, overwrite=asked.writing.overwrite)
    with (
        recognised([asked.model], asked.opening, asked.tie.untie) as (model,),
        destination(asked.out, asked.writing, [model], asked.opening.spec, observer=observer) as output,
    ):

        def run() -> tuple[Alignment, ApplyReport[Canonicity]]:
            alignment, report = run_canon(model, output)
            if asked.dressing.activations is not None and report.about is not None:
                written = write_dressed(model, alignment, asked.dressing)
                report = replace(report, about=replace(report.about, activations=written))
            return alignment, report

        yield Moving(run)


def check_dressing(options: DressingOptions, *, overwrite: bool) -> None:
    """Refuse what cannot be written, before anything is computed.

    Raises:
        IsomergeError: naming the option.
    """
    if options.activations is None:
        if options.data is not None:
            raise IsomergeError("--data is what activations are dressed on: add --activations FILE")
        return
    if options.data is None:
        raise IsomergeError("--activations needs examples to run the model on: add --data DATA")
    path = Path(os.path.expanduser(options.activations))
    check_file(path, f"--activations {path}", overwrite=overwrite)
    if path.suffix != ".safetensors":
        raise IsomergeError(f"--activations {path}: activations are written as safetensors: name it .safetensors")
    if options.limit < 1:
        raise IsomergeError(f"--limit {options.limit}: at least 1 is needed")


def write_dressed(model: Model, alignment: Alignment, options: DressingOptions) -> Activations:
    """Run a model and write what its layers give, float32 [examples, ..., width] by submodule; what was written.

    Args:
        model: as it is stored: its own activations are dressed.
        alignment: what moves it to its canonical form.
        options: the file, and the data.

    Raises:
        IsomergeError: data that do not fit, or a model with other than one residual stream.
    """
    data = as_data(options.data, "--data")
    assert data is not None
    examples = data_for(model.checkpoint, data, limit=options.limit, length=options.length)
    module = load_module(model)
    parts: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad(), Dressing(module, alignment) as dressing:
        for batch in examples.batches(BATCH):
            outputs_of(module, batch)
            for name, x in dressing.activations.items():
                parts.setdefault(name, []).append(x.float().cpu())
    tensors = {name: torch.cat(each).contiguous() for name, each in parts.items()}
    file = Path(os.path.expanduser(str(options.activations)))
    about = {"command": "canon", "model": model.ref, "examples": len(examples)}
    write_tensors(file, tensors, about)
    return Activations(str(file), {name: list(x.shape) for name, x in tensors.items()}, len(examples))
