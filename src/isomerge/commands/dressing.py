"""A model's activations in the frame of its canonical form, written to a file: equal for all disguises of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.files import check_file, write_tensors
from isomerge.models.recognised import Model
from isomerge.observe.data.live_data import as_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import outputs_of
from isomerge.options.requests.moving import DressingOptions
from isomerge.quotient.dressing import Dressing
from isomerge.solve.match_inputs import data_for
from isomerge.symmetry.alignment import Alignment

BATCH = 16
"""Examples that are run at a time."""


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


def write_dressed(model: Model, alignment: Alignment, options: DressingOptions) -> dict[str, Any]:
    """Run a model and write what its layers give, float32 [examples, ..., width] by submodule; the report has the
    ``file``, the ``layers`` with their shapes, and the ``examples``.

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
    return {"file": str(file), "layers": {k: list(x.shape) for k, x in tensors.items()}, "examples": len(examples)}
