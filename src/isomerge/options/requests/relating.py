"""A model brought into relational form: what `isomerge relational` is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.options.files import DryRunOptions, FolderOptions, TellingOptions, out_folder
from isomerge.options.option import Request, argument, group, option


class Relational(Request):
    """Write MODEL in relational form: the same function of Gram numbers, which no rotation of its stream changes.

    isomerge.research.relational.load reads it.
    """

    progress = "relational form"
    model: Any = argument("A pre-norm model: a folder or hub id.")
    out: str | Path = out_folder(needed_in_python=True)
    anchors: str = option(
        "identity",
        "The vectors that tokens are seen from: identity (the coordinate axes), random (a basis), or tokens "
        "(embeddings that are far from each other).",
    )  # fmt: skip
    full: bool = option(
        False, "Store each head as two full forms, free of gauge; not with rotary positions.", "--full",
    )  # fmt: skip
    chunk: int | None = option(None, "Tokens per chunk of attention with memory linear in the length.", least=1)
    seed: int = option(
        0, "Of a random basis.", acts=lambda a: None if a.anchors == "random" else "only random anchors are drawn",
    )  # fmt: skip
    writing: FolderOptions = group(FolderOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)
