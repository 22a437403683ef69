"""What a match is given beside weights: data, opened and checked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from isomerge.checkpoint.companion_folder import companion_folder
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.read_files import data_key, file_stamp, shown
from isomerge.options.unused import note, tell
from isomerge.solve.match_options import GENERATE, Matching
from isomerge.solve.unfinished_run import UnfinishedRun

TOKENS = 128
"""Of an example of text, where ``--length`` does not say it."""


def open_given(
    ref: str | Path | Examples, anchor: Model, matching: Matching, *, option: str | None = None
) -> Examples:
    """Examples through the anchor's tokenizer or image processor, no more than the matching's limit; without those
    that have tokens which some model lacks.

    Errors name ``option``; by default the one of the matching by which ``ref`` was given.

    Raises:
        IsomergeError: see `isomerge.observe.data.opening_data.open_data`; or all examples have such tokens.
    """
    option = option or _option_of(ref, matching)
    examples = _opened(ref, anchor, matching, None, option)
    lent = anchor.checkpoint.lent
    return of_known_tokens(examples, anchor, lent.uncommon, option) if lent and lent.uncommon else examples


def of_known_tokens(examples: Examples, model: Model, uncommon: Collection[int], option: str) -> Examples:
    """Examples without those in which a token stands that some model lacks: what a model makes of another's row is
    no evidence.

    Raises:
        IsomergeError: none is left.
    """
    tokens = ["input_ids", "decoder_input_ids"]
    if Inputs(model.config).task in ("causal", "masked", "seq2seq"):
        tokens.append("labels")
    rows, known = torch.tensor(sorted(uncommon)), torch.ones(len(examples), dtype=torch.bool)
    for name in tokens:
        if (ids := examples.tensors.get(name)) is None or ids.is_floating_point():
            continue
        lacking = torch.isin(ids, rows)
        mask = examples.tensors.get("attention_mask") if name == "input_ids" else None
        if mask is not None and mask.shape == ids.shape:
            lacking &= mask > 0
        known &= ~lacking.flatten(1).any(1)
    left_out = int((~known).sum())
    if left_out == len(examples):
        raise IsomergeError(
            f"{option}: every example has a token that one of the models lacks, so that they cannot be compared on "
            "it: give texts of tokens that all have, or models of one vocabulary (isomerge transplant-tokenizer "
            "makes them so)"
        )
    if not left_out:
        return examples
    tell(f"{option}: {left_out} of {len(examples)} examples have tokens that one of the models lacks: left out")
    return Examples({name: x[known] for name, x in examples.tensors.items()}, examples.labelled)


def _opened(
    ref: str | Path | Examples, anchor: Model, matching: Matching, limit: int | None, option: str
) -> Examples:
    """See `open_given`; no more than ``limit`` as well."""
    least = min((n for n in (limit, matching.limit) if n is not None), default=None)
    if isinstance(ref, Examples):
        from isomerge.observe.data.opening_data import check_limit

        check_limit(least)
    return data_for(anchor.checkpoint, ref, limit=least, length=matching.length, option=option)


def _option_of(ref: str | Path | Examples, matching: Matching) -> str:
    """The option by which data were given."""
    return "--learn" if ref is matching.learn and ref is not matching.data else "--data"


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
            examples = _opened(ref, anchor, matching, 1, _option_of(ref, matching))
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
        run.commit(GENERATE, run_generate(models, options).document())
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
