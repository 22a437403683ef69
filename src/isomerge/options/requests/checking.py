"""An output checked: what `isomerge fsck` is asked for, and `isomerge.open` in Python."""

from __future__ import annotations

from pathlib import Path

from isomerge.options.files import SpecOptions, TellingOptions
from isomerge.options.option import Request, argument, group, option


class Fsck(Request):
    """Exit 0 if OUT is still what was written, 1 if not: files and checksums, headers, index, shapes, no NaN."""

    progress = "checking"
    out: str | Path = argument("The folder that merge, align, apply or canon wrote.", kind=Path)
    opening: SpecOptions = group(SpecOptions)
    telling: TellingOptions = group(TellingOptions)


class Open(Request):
    """Python's alone: a checkpoint opened without its spec."""

    model: str | Path = argument("A folder or hub id.")
    allow_pickle: bool = option(False, "Read .bin weights (with weights_only); safetensors are safer.")
