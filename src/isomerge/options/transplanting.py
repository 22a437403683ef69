"""Whose tokenizer a model gets, and what becomes of tokens that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isomerge.options.option import FIRST, Options, option

MULTIPLE = "Add rows until their number is a multiple of this."


@dataclass(frozen=True)
class TransplantOptions(Options):
    """How tokens get rows that a model does not have."""

    missing: str | None = option(
        None,
        "What tokens get that MODEL lacks: omp (the sum of its own rows that orthogonal matching pursuit finds in "
        "the other model), nearest (the mean of the nearest there, by cosine), subword (the mean of their pieces "
        "by MODEL's own tokenizer), mean, or zero. By default omp where the other one has weights, else subword.",
        "--missing", shown=False, panel=FIRST,
    )  # fmt: skip
    neighbours: int = option(64, "How many rows omp and nearest sum, at most.", least=1, panel=FIRST)
    data: str | Path | Sequence[str] | None = option(
        None,
        "Measure the loss on this text before and after, in nats per byte: a file of text, or of records with a "
        "field text.",
        "--data", kind=str | None, panel=FIRST,
    )  # fmt: skip
    limit: int | None = option(256, "With --data: use no more than so many texts.", least=1, panel=FIRST)
    pad_to_multiple_of: int | None = option(None, MULTIPLE, "--pad-to-multiple-of", panel=FIRST)
