"""What a part of a single file has of a stored tensor: all of it, some rows, or another order of its entries.

Rows lie one behind the other in a file, so that some of them are a stored tensor of their own, which is read where
it lies; so is one of another shape. A transposed tensor, and one whose halves change places, are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from isomerge.checkpoint.header import TensorInfo
from isomerge.records import Json

if TYPE_CHECKING:
    from torch import Tensor

TRANSPOSED, SWAPPED = "transposed", "swapped"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Some of a stored tensor."""

    name: str
    """What the file calls the tensor."""
    stored: Shape
    """The shape of the piece in the file; its rows are the first axis."""
    first: int = 0
    """The first of its rows."""
    shape: Shape | None = None
    """How the part has it, where that is not as it is stored: other axes, of as many entries."""
    turn: str = ""
    """`TRANSPOSED`: rows are the part's columns. `SWAPPED`: the part has the second half of the rows first."""

    def info(self, name: str, whole: TensorInfo) -> TensorInfo:
        """The piece as a stored tensor, but for its turn.

        Args:
            name: what the part calls it.
            whole: the stored tensor.
        """
        row = whole.nbytes // max(whole.shape[0], 1) if whole.shape else 0
        count = prod(self.stored) * whole.nbytes // max(prod(whole.shape), 1)
        return replace(
            whole, name=name, shape=self.shape or self.stored, offset=whole.offset + self.first * row, nbytes=count
        )

    def turned(self, tensor: Tensor) -> Tensor:
        """A tensor as it is stored, in the order that the part has, and the reverse: each turn is its own."""
        if self.turn == TRANSPOSED:
            return tensor.T.contiguous()
        if self.turn == SWAPPED:
            return tensor.roll(tensor.shape[0] // 2, 0)
        return tensor


@dataclass(frozen=True)
class Part:
    """One part of a single file."""

    kind: str
    """The class that it is, or what it is called where there is none."""
    config: Json
    pieces: dict[str, Piece]
    """By the names that it has as a checkpoint."""

    @property
    def names(self) -> dict[str, str]:
        """From the names that it has as a checkpoint to those of the file."""
        return {new: piece.name for new, piece in self.pieces.items()}


def wholes(names: Mapping[str, str], shapes: Mapping[str, Shape]) -> dict[str, Piece]:
    """Pieces that are whole tensors.

    Args:
        names: from the part's names to those of the file.
        shapes: of the stored tensors.
    """
    return {new: Piece(old, shapes[old]) for new, old in names.items()}


def rows(name: str, shape: Shape, parts: Iterable[tuple[str, int]]) -> dict[str, Piece]:
    """A tensor's rows under several names, one behind the other; nothing where they are not all of its rows.

    Args:
        name: what the file calls it.
        shape: its own.
        parts: the part's names, and how many rows each has.
    """
    pieces: dict[str, Piece] = {}
    first = 0
    for new, count in parts:
        pieces[new] = Piece(name, (count, *shape[1:]), first)
        first += count
    return pieces if first == shape[0] else {}


def together(pieces: Sequence[tuple[Piece, Tensor]]) -> Tensor:
    """A stored tensor from all of its pieces as the part has them, in any order."""
    import torch

    tensors = [
        piece.turned(tensor).reshape(piece.stored) for piece, tensor in sorted(pieces, key=lambda p: p[0].first)
    ]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
