"""An architecture that nobody listed: its spec, found and proven."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companions import files_of_model
from isomerge.checkpoint.reader import Checkpoint
from isomerge.discovery.checkpoint import covered, read_config
from isomerge.discovery.discover import discover as find
from isomerge.discovery.discover import summary
from isomerge.errors import IsomergeError
from isomerge.evidence.report.notebook import Report
from isomerge.files import check_file, check_not_read, write_whole
from isomerge.observe.read_files import paths_read
from isomerge.progress import Observer, quiet
from isomerge.run.arguments import checked


@checked()
def discover(
    model: Any,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    overwrite: bool = False,
    observer: Observer = quiet,
) -> dict[str, Any]:
    """Derive the spec of an architecture that isomerge does not know, and prove every space of it by the law.

    Tiny random models of the same configuration class are built and run on the CPU; the weights of ``model`` are
    not read.

    Args:
        model: a folder (with weights, or with config.json alone), a config.json, a hub id, an open checkpoint, or a
            config as a dict.
        out: a file for the spec text, which every command takes as ``--spec``.
        seed: of the tiny models.
        overwrite: replace ``out`` when it exists.

    Returns:
        ``spec`` (the text), ``model_type``, ``class``, ``proven`` and ``rejected`` (``space``, ``role``, ``group``,
        ``index``, ``error``: the largest relative change of outputs), ``fixed`` (lines that nothing acts on),
        ``checked`` (the errors on fresh models, space by space and all together), ``coverage`` (how many tensors of
        the checkpoint the text describes; None for a config alone).

    Raises:
        IsomergeError: transformers cannot build a tiny model of this class, its tensors are not those of the
            checkpoint, or ``out`` exists.
    """

    path = None if out is None else Path(os.path.expanduser(out))
    if path is not None:
        check_file(path, str(path), overwrite=overwrite)
        folders = model.folder if isinstance(model, Checkpoint) else model
        check_not_read(path, str(path), [file for place in paths_read(folders) for file in files_of_model(place)])
    ref, config, shapes = read_config(model)
    steps = 0

    def say(step: str) -> None:
        nonlocal steps
        steps += 1
        observer(step, steps, 0)

    try:
        derived = find(config, seed=seed, say=say)
        derived, count = covered(derived, config, shapes)
    except IsomergeError as error:
        raise IsomergeError(f"{ref}: {error}") from None
    if path is not None:
        write_whole(path, derived.text.encode())
    return Report({"command": "discover", "model": ref, **summary(derived), "coverage": count})
