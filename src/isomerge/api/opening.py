"""A checkpoint opened, without its spec."""

from __future__ import annotations

from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.options.requests.checking import Open
from isomerge.run.arguments import checked


@checked(Open)
def open(asked: Open) -> Checkpoint:
    """Open a checkpoint lazily: a folder, or a hub id such as ``org/name@revision``; headers are checked.

    Raises:
        IsomergeError: it is missing, truncated or not safe to read.
    """
    return open_checkpoint(asked.model, allow_pickle=asked.allow_pickle)
