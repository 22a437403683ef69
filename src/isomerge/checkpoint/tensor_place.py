"""A tensor that is written into its file piece by piece, while it is computed: it is never whole in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zlib_ng.zlib_ng import crc32

from isomerge.checkpoint.disk import write_from
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.files import disk_errors
from isomerge.pieces import PIECE

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor whose bytes are at their place in its file already; `CheckpointWriter.write` takes it for the
    tensor."""

    crc32: int


class TensorPlace:
    """Where one tensor goes: pieces are filled by the caller, one after the other, and written (see
    `isomerge.passes.Pass`).

    Several places may be filled at once, by threads of their own. What is written counts once the
    `CheckpointWriter` has been given the `PlacedTensor`.

    Args:
        path, offset: the file, and the tensor's first byte in it.
        shape, dtype: as they are stored.
    """

    def __init__(self, path: Path, offset: int, shape: torch.Size, dtype: torch.dtype) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, dtype
        self._crc: int | None = None

    def places(self) -> Iterator[torch.Tensor]:
        """Room for one piece after the other, vectors of at most `PIECE` entries; each is written when the next is
        asked for.

        Raises:
            IsomergeError: the disk is full.
        """
        import torch

        size, crc, offset = self.shape.numel(), 0, self.offset
        room = torch.empty(min(size, PIECE), dtype=self.dtype)
        with disk_errors(self.path):
            fd = os.open(self.path, os.O_WRONLY)
        try:
            for start in range(0, max(size, 1), PIECE):
                piece = room[: size - start]
                yield piece
                content = content_of(piece)
                with disk_errors(self.path):
                    write_from(fd, content, offset)
                crc, offset = crc32(content, crc), offset + len(content)
        finally:
            os.close(fd)
        self._crc = crc

    def placed(self) -> PlacedTensor:
        """For the writer, once all pieces are written."""
        assert self._crc is not None, "all pieces are written first"
        return PlacedTensor(self._crc)
