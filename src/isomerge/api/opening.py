"""A checkpoint opened, without its spec."""

from __future__ import annotations

from pathlib import Path

from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.run.arguments import checked


@checked()
def open(model: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Open a checkpoint lazily: a folder, or a hub id such as ``org/name@revision``; headers are checked.

    Raises:
        IsomergeError: it is missing, truncated or not safe to read.
    """
    return open_checkpoint(model, allow_pickle=allow_pickle)
