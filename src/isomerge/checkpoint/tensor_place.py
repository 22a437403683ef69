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
from isomerge.pieces import PIECE, all_finite

if TYPE_CHECKING:
    import torch


class NotFiniteError(ArithmeticError):
    """A piece has an entry that is not finite in the dtype that it is stored in."""


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor whose bytes are at their place in its file already; `CheckpointWriter.write` takes it for the
    tensor."""

    crc32: int


class TensorPlace:
    """Where one tensor goes: pieces are filled by the caller, one after the other, and written (see
    `isomerge.pieces.pieces`).

    Several places may be filled at once, by threads of their own. What is written counts once the
    `CheckpointWriter` has been given the `PlacedTensor`.

    Args:
        path, offset: the file, and the tensor's first byte in it.
        shape, dtype: as they are stored.
        finite: refuse what is not finite.
    """

    def __init__(self, path: Path, offset: int, shape: torch.Size, dtype: torch.dtype, *, finite: bool) -> None:
        self.path, self.offset, self.shape, self.dtype, self.finite = path, offset, shape, dtype, finite
        self._crc: int | None = None

    def places(self) -> Iterator[torch.Tensor]:
        """Room for one piece after the other, vectors of at most `PIECE` entries; each is written when the next is
        asked for.

        Raises:
            NotFiniteError: see ``finite``.
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
                if self.finite and not all_finite(piece):
                    raise NotFiniteError
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
