"""`isomerge.generate`: examples for matching where there are no data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isomerge.commands.measuring import planned_generate
from isomerge.evidence.report.notebook import Report
from isomerge.options import ImportOptions
from isomerge.progress import Observer, quiet
from isomerge.run.arguments import checked


@checked(ImportOptions)
def generate(
    models: Sequence[Any],
    *,
    out: str | Path,
    limit: int = 1024,
    length: int = 128,
    batch_size: int = 64,
    device: str = "cpu",
    seed: int = 0,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
    max_memory: str | int | None = None,
    observer: Observer = quiet,
) -> dict[str, Any]:
    """Write examples for models that shall be matched and that nobody has data for.

    Causal language models write texts themselves, drawn token by token from their own distribution, each model its
    share, in turn; classifiers of images get noise. The file is data for `align`, `merge`, `stats` and `barrier`.

    Args:
        models: folders, hub ids, open checkpoints or live modules: all that will be matched.
        out: the safetensors file: ``input_ids`` int64 [limit, length] or ``pixel_values`` float32 [limit, channels,
            height, width].
        limit: how many examples.
        length: tokens per text; less where the models read less.
        batch_size: texts that a model writes at a time.
        device: where models write.
        seed: of what is drawn; equal seeds give equal files on one machine.
        overwrite: replace ``out``.
        max_memory: what the run may take, such as ``8GB``, by the estimate of ``--dry-run``; where that is too
            little nothing is done.

    Returns:
        A report: ``kind`` (``texts`` or ``images``), ``shapes`` by tensor, ``examples``, ``seed``, ``bytes``.

    Raises:
        IsomergeError: models that neither write texts nor see images, or not the same ones; nothing is written.
    """

    with planned_generate(
        models, out=out, limit=limit, length=length, batch_size=batch_size, device=device, seed=seed, spec=spec,
        allow_pickle=allow_pickle, overwrite=overwrite, max_memory=max_memory, observer=observer,
    ) as planned:  # fmt: skip
        return Report(planned.run())
