"""What a match is given beside weights: data, opened and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companion_folder import companion_folder
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.read_files import data_key, file_stamp, shown
from isomerge.options.unused import note
from isomerge.solve.match_options import GENERATE, Matching
from isomerge.solve.unfinished_run import UnfinishedRun

TOKENS = 128
"""Of an example of text, where ``--length`` does not say it."""


def open_given(
    ref: str | Path | Examples,
    anchor: Model,
    matching: Matching,
    limit: int | None = None,
    *,
    option: str | None = None,
) -> Examples:
    """Examples through the anchor's tokenizer or image processor, no more than ``limit`` and the matching's own.

    Errors name ``option``; by default the one of the matching by which ``ref`` was given.

    Raises:
        IsomergeError: see `isomerge.observe.data.opening_data.open_data`.
    """
    bounds = [n for n in (limit, matching.limit) if n is not None]
    if isinstance(ref, Examples):
        from isomerge.observe.data.opening_data import check_limit

        check_limit(min(bounds, default=None))
        return ref.head(min(bounds)) if bounds else ref
    option = option or ("--data" if ref is matching.data or ref is not matching.learn else "--learn")
    least = min(bounds, default=None)
    return data_for(anchor.checkpoint, str(ref), limit=least, length=matching.length, option=option)


def data_for(
    checkpoint: Checkpoint,
    ref: str | Path | Examples,
    *,
    limit: int | None = None,
    length: int = 128,
    option: str = "--data",
) -> Examples:
    """Examples through the tokenizer or processor of a checkpoint, or of a view, that are its own; those that are
    examples already as they are, no more than ``limit``.

    For the arguments and errors see `isomerge.observe.data.opening_data.open_data`.
    """

    if isinstance(ref, Examples):
        return ref if limit is None else ref.head(limit)
    # a reader for every kind of data, and most merges have none
    from isomerge.observe.data.opening_data import open_data

    with companion_folder(checkpoint) as folder:
        examples = open_data(str(ref), folder, limit=limit, length=length, config=checkpoint.config, option=option)
    if length != TOKENS and "pixel_values" in examples.tensors and "input_ids" not in examples.tensors:
        note("length", "these examples are images")
    return examples


def check_data(matching: Matching, anchor: Model) -> None:
    """Read one example of everything that will be read, so that a dry run tells what is missing or does not fit.

    Raises:
        IsomergeError: data that cannot be read or do not fit, or labels that are asked for and not there.
    """
    for ref in (matching.data, matching.learn):
        if ref is not None and ref != GENERATE:
            examples = open_given(ref, anchor, matching, 1)
            if ref is matching.learn:
                check_labels(matching, examples)


def with_generated(matching: Matching, models: Sequence[Model], run: UnfinishedRun) -> Matching:
    """The same match with data that the models make, where these were asked for: made once, and kept in the folder
    of the unfinished output.

    Raises:
        IsomergeError: see `isomerge.observe.live.generated.run_generate`.
    """
    if GENERATE not in (matching.data, matching.learn):
        return matching
    from isomerge.observe.live.generated import Generation, run_generate

    file = run.blob("generated.safetensors")
    if run.done(GENERATE) is None:
        options = Generation(
            file,
            count=matching.limit or Generation.count,
            length=matching.length,
            seed=matching.settings.seed if matching.settings else 0,
            device=matching.device,
            overwrite=True,
            observer=run.observer,
        )
        run.commit(GENERATE, run_generate(models, options))
    made = {name: str(file) for name in ("data", "learn") if getattr(matching, name) == GENERATE}
    return replace(matching, **made)


def check_labels(matching: Matching, examples: Examples) -> None:
    """Refuse data without labels where they are the target.

    Raises:
        IsomergeError: naming the option.
    """
    if matching.settings is not None and matching.settings.target == "labels" and not examples.labelled:
        raise IsomergeError("the data have no labels: learn with --learn-target distill")


def inputs_key(matching: Matching, anchor: Model) -> list[Any]:
    """What tells one match from another: options, and names, sizes and dates of all files that are read."""
    options = replace(matching, data=shown(matching.data), learn=shown(matching.learn))
    key: list[Any] = [repr(options)]
    for ref in (matching.data, matching.learn):
        key += data_key(ref, anchor, matching.limit)
    return [*key, *(file_stamp(file) for file in matching.stats)]
