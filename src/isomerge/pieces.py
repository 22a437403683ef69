"""Large tensors, worked on piece by piece.

Temporaries stay in the cache, and below the size that is mapped afresh each time (`isomerge.models.peak_memory`),
which costs more than the arithmetic; and tensors that are stored in half precision are never whole in memory in
full precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 1 << 18
"""Entries of a piece: a megabyte in float32, below what is mapped afresh (`isomerge.models.peak_memory`); half as
many take a fifth longer, as threads wait for the interpreter's lock at each call."""


def wide_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """What is computed in: float64 where a tensor is, else float32, never half."""
    import torch

    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


class Places(Protocol):
    """What is filled piece by piece, and never whole in memory: `isomerge.checkpoint.tensor_place.TensorPlace`."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the pieces."""
        ...

    def places(self) -> Iterator[Tensor]:
        """Room for one piece after the other, which is taken away when the next is asked for."""
        ...


Seen = Callable[["Sequence[Tensor]", "Sequence[Tensor]"], None]
"""Told of pieces, as they are stored and as they are computed with."""


def pieces(
    tensors: Sequence[Tensor], out: Tensor | Places, dtype: torch.dtype | None = None, seen: Seen | None = None
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """The pieces of tensors of one size, in order, converted to ``dtype`` (None: that of ``out``), and the place of
    each in ``out``: in memory, or on its way to a file, which it leaves for with the next step.

    A piece may be the tensor's own memory: change none in place; or be overwritten with the next step: keep none.
    ``seen`` is told of the pieces as they are stored and as they are given, before they are.
    """
    import torch

    wide = dtype or out.dtype
    flat = [t.reshape(-1).split(PIECE) for t in tensors]
    rooms = [
        None if t.dtype == wide else torch.empty_like(x[0], dtype=wide) for t, x in zip(tensors, flat, strict=True)
    ]
    places = out.view(-1).split(PIECE) if isinstance(out, torch.Tensor) else out.places()
    for place, *parts in zip(places, *flat, strict=True):
        # the same room again, which is in the cache: new memory takes three quarters longer
        converted = [x if room is None else room[: len(x)].copy_(x) for x, room in zip(parts, rooms, strict=True)]
        if seen is not None:
            seen(parts, converted)
        yield converted, place


_rooms: list[Tensor] | None = None
"""What `scratch` lends while `scratch_kept` is entered, when nobody has it."""
KEPT = 1 << 25
"""The largest room that is kept, in entries."""


@contextmanager
def scratch(like: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Room for as many entries as a tensor has, a vector on its device whose content is arbitrary.

    Inside of `scratch_kept` it is memory that was used before: the system clears what it gives anew, which takes as
    long as a pass of arithmetic.
    """
    import torch

    size, room = like.numel(), None
    rooms = _rooms if size <= KEPT else None
    if rooms:
        with suppress(IndexError):  # other threads borrow as well
            room = rooms.pop()
    if room is None or room.dtype != dtype or room.device != like.device or room.numel() < size:
        room = torch.empty(size, dtype=dtype, device=like.device)
    yield room[:size]
    if rooms is not None:
        rooms.append(room)


@contextmanager
def scratch_kept() -> Iterator[None]:
    """Until the end, `scratch` lends the same memory again: as many rooms as are asked for at a time."""
    global _rooms
    _rooms = []
    try:
        yield
    finally:
        _rooms = None


def all_finite(tensor: Tensor) -> bool:
    """Whether a floating-point tensor has no NaN and no infinite value."""
    # a sum is not finite where an entry is not, and rarely else; that of x - x is zero exactly where all entries
    # are
    pieces = tensor.reshape(-1).split(PIECE)
    if tensor.element_size() == 1:  # float8 has no arithmetic
        pieces = (x.float() for x in pieces)
    return all(isfinite(float(x.sum())) or bool((x - x).sum() == 0) for x in pieces)
