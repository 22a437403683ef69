"""A writer for runs whose tensors nobody wants: what they find is kept while they last, and nothing else is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from isomerge.checkpoint.checksums import Checksum
from isomerge.checkpoint.place import PlacedTensor
from isomerge.checkpoint.writer import CheckpointWriter

if TYPE_CHECKING:
    import torch


class DroppingWriter(CheckpointWriter):
    """Takes tensors and drops them; its folder holds side files alone, and is gone in the end."""

    def __init__(self, out: Path, *, key: str) -> None:
        super().__init__(out, [], key=key)

    def write(self, name: str, tensor: torch.Tensor | PlacedTensor) -> None:
        """Drops the tensor."""

    def finish(
        self,
        files: Mapping[str, bytes | Path],
        links: Mapping[str, str] | None = None,
        last: Callable[[dict[str, Checksum]], Mapping[str, bytes]] | None = None,
    ) -> Path:
        """Removes the folder; ``out``, which is returned, is not made."""
        self.discard()
        return self.out
