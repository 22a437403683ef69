"""One pass over tensors: read piece by piece, widened, measured, computed with, measured again, rounded and placed.

A tensor that is larger than the cache comes from memory for every pass over it. What is to be known of its numbers
(sizes, distances, whether they are finite) is taken while a piece is in the cache, in the compiled loops that widen
and round it (`isomerge.loops`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isfinite, nan
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from isomerge.pieces import PIECE, all_finite

BITS = {
    torch.bfloat16: torch.uint16,
    torch.float16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""Types that loops read as they are stored, and what numpy reads their bits as."""
Function = Callable[[list[Tensor]], Tensor]
"""From a piece of every tensor, which it leaves as it is, to the result's, in the same dtype."""
Seen = Callable[[Sequence[Tensor], Sequence[bool]], None]
"""Is told of every piece as it is stored, and which are finite, before anything is computed of it."""


class Places(Protocol):
    """What is filled piece by piece, and never whole in memory: `isomerge.checkpoint.tensor_place.TensorPlace`."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the pieces."""
        ...

    def places(self) -> Iterator[Tensor]:
        """Room for one piece after the other, which is taken away when the next is asked for."""
        ...


class NotFiniteError(ArithmeticError):
    """A result has an entry that is not finite in the dtype that it is stored in."""


@dataclass
class Sums:
    """What is known of the pieces of a tensor so far."""

    square: float = 0.0
    """The sum of squares."""
    gap: float = 0.0
    """That of squared differences from the anchor."""
    largest: float = 0.0
    """The largest magnitude."""

    def add(self, square: float, gap: float, largest: float) -> None:
        """One piece more."""
        self.square, self.gap, self.largest = self.square + square, self.gap + gap, max(self.largest, largest)


class Pass:
    """A pass over some tensors.

    Args:
        tensors: of one size, floating point, on the CPU.
        wide: what is computed in: float32 or float64.
        anchor: which of them distances are taken from.
        seen: see `Seen`.
    """

    def __init__(
        self, tensors: Sequence[Tensor], wide: torch.dtype, *, anchor: int = 0, seen: Seen | None = None
    ) -> None:
        self._flat, self._wide = [t.detach().reshape(-1) for t in tensors], wide
        self._anchor, self._seen = anchor, seen
        self._order = sorted(range(len(tensors)), key=lambda k: k != anchor)
        room = min(len(self._flat[0]), PIECE)
        self._rooms = [None if t.dtype == wide else torch.empty(room, dtype=wide) for t in tensors]
        self.sums = [Sums() for _ in tensors]
        """Of every tensor."""
        self.result = Sums()
        """Of what was computed, before it is rounded."""

    def run(self, made: Function | Entries | None = None, out: Tensor | Places | None = None) -> None:
        """Read all, and put what is made of a piece of every tensor into ``out``, in memory or on its way to a
        file; in one loop where that is made of single entries, and loops know how all are stored.

        Raises:
            NotFiniteError: the result has NaN or infinite values in the dtype of ``out``.
        """
        if made is None or out is None:
            for _ in self.pieces():
                pass
            return
        places = out.view(-1).split(PIECE) if isinstance(out, Tensor) else out.places()
        is_one, function = None, made
        if isinstance(made, Entries):
            is_one, function = self._in_one_loop(made, out.dtype), partial(_of_piece, made)
        for place, stored in zip(places, self._stored(), strict=True):
            if is_one is None or not is_one(stored, place):
                self._put(function(self._read(stored, measure=True)), place)
        if not (isfinite(self.result.square) and fits(self.result.largest, out.dtype)):
            raise NotFiniteError

    def pieces(self, *, measure: bool = True) -> Iterator[list[Tensor]]:
        """A piece of every tensor, widened and measured, in order; in memory that is lent until the next."""
        for stored in self._stored():
            yield self._read(stored, measure)

    def _stored(self) -> Iterator[Sequence[Tensor]]:
        return zip(*(x.split(PIECE) for x in self._flat), strict=True)

    def _in_one_loop(
        self, entries: Entries, dtype: torch.dtype
    ) -> Callable[[Sequence[Tensor], Tensor], bool] | None:
        """What takes a piece of each tensor through the loop of some entries, and tells whether it could: not where
        sums are not finite; None where loops do not read or write all."""
        written = dtype in (torch.float32, torch.bfloat16, torch.float16)
        if self._wide != torch.float32 or not written or not all(x.dtype in BITS for x in self._flat):
            return None
        loop, count = Loop(entries, [*(x.dtype for x in self._flat), dtype], self._wide), len(self._flat)
        half = np.array([each.itemsize <= 2 for each in (*(x.dtype for x in self._flat), dtype)])
        half[:count] &= half[self._anchor]

        def is_one(stored: Sequence[Tensor], place: Tensor) -> bool:
            sums, tops, before = np.zeros((count + 1, 2)), np.zeros((count + 1, 1), np.int64), loop.seen.copy()
            loop(stored, place, (half, self._anchor, sums, tops))
            if not np.isfinite(sums).all():
                loop.seen[:] = before
                return False
            if self._seen is not None:
                self._seen(stored, [True] * count)
            largest = tops.astype(np.uint32).view(np.float32).tolist()
            for each, (square, gap), (size,) in zip([*self.sums, self.result], sums.tolist(), largest, strict=True):
                each.add(square, gap, size)
            return True

        return is_one

    def _read(self, stored: Sequence[Tensor], measure: bool) -> list[Tensor]:
        wide, finite = list(stored), [True] * len(stored)
        for k in self._order:
            piece, room = stored[k], self._rooms[k]
            anchor = None if k == self._anchor else wide[self._anchor]
            half = piece.element_size() <= 2 and (anchor is None or stored[self._anchor].element_size() <= 2)
            if room is not None:
                wide[k] = room[: len(piece)]
                if self._wide == torch.float64 or piece.element_size() > 2 or piece.dtype not in BITS:
                    wide[k].copy_(piece)
                    piece = wide[k]
            if not measure:
                _widen(piece, wide[k])
                continue
            sums = _read(piece, wide[k], anchor, half)
            finite[k] = isfinite(sums[0]) or all_finite(stored[k])
            self.sums[k].add(*sums)
        if self._seen is not None and measure:
            self._seen(stored, finite)
        return wide

    def _put(self, piece: Tensor, place: Tensor) -> None:
        piece = piece.reshape(-1).contiguous()
        if piece.dtype == torch.float32 and place.dtype in (torch.bfloat16, torch.float16):
            self.result.add(*_rounded(piece, place))
        else:
            self.result.add(*_read(piece, piece, None, False))
            place.copy_(piece)


def fits(largest: float, dtype: torch.dtype) -> bool:
    """Whether a magnitude is a number in another dtype, and but for rounding the same: types of a byte have no
    infinity, and take their largest number for all that is larger."""
    there, info = float(torch.tensor(largest, dtype=torch.float64).to(dtype)), torch.finfo(dtype)
    return isfinite(there) and largest - there <= max(info.eps / 2 * largest, info.smallest_normal)


def squares(x: Tensor, anchor: Tensor | None = None) -> tuple[float, float]:
    """The sum of squares of a tensor, float32 or float64 on the CPU, and that of its differences from another one
    of its type and shape; in one loop, as nothing is widened."""
    total = Sums()
    parts = x.detach().reshape(-1).split(PIECE)
    others = parts if anchor is None else anchor.detach().reshape(-1).split(PIECE)
    for part, other in zip(parts, others, strict=True):
        total.add(*_read(part, part, other, False))
    return total.square, total.gap


class Part:
    """What stays of the difference of two vectors that come piece by piece, in order: entries by their sizes, or
    those of a mask, times a factor."""

    def __init__(self) -> None:
        self.low, self.high, self.factor = -1.0, nan, 1.0
        """Sizes that entries lie between, and what they are multiplied by."""
        self.stay = np.zeros((2, 2), np.int64)
        """Of the entries of the least and of the largest size that stay the first's number, and the last's."""
        self.seen = np.zeros(3, np.int64)
        """Those of either size in the pieces so far, and all."""
        self.mask: np.ndarray | None = None
        """Which of all entries stay; None: any."""

    def __call__(self, part: Tensor, base: Tensor) -> Tensor:
        """From the next piece of a model and of the base, vectors, to that of what stays of the task vector."""
        from isomerge.loops import compiled, cut

        delta, mask = torch.empty_like(part), 0 if self.mask is None else self.mask.ctypes.data
        numbers = np.array([self.low, self.high, self.factor], delta.numpy().dtype)
        compiled(cut)(part.numpy(), base.numpy(), *numbers, self.stay, self.seen, mask, delta.numpy())
        return delta


@dataclass(frozen=True)
class Entrywise:
    """What becomes of one entry of some tensors: functions of numbers, compiled into one loop over all entries.

    They are made of arithmetic, choose by ``x if condition else y``, and write numbers of their own as
    ``type(d)(1)``, as all are of the tensors' type: ``d`` is an entry less the base's, ``a`` and ``b`` are two
    numbers that its tensor has, and ``p``, ``q``, ``r`` three that all have.
    """

    vote: Callable[..., Any]
    """``votes = vote(d, a, b, votes)``, tensor by tensor; from -0."""
    last: Callable[..., Any]
    """The result: ``last(z, votes, total, count, p, q, r)``, with the base's entry ``z`` (0: there is none)."""
    take: Callable[..., Any] | None = None
    """``total, count = take(d, a, b, votes, total, count)``, once all have voted; from -0."""

    def __call__(
        self,
        own: Sequence[Sequence[float]],
        common: Sequence[float] = (),
        *,
        subtract: bool = True,
        parts: Sequence[Part | None] = (),
    ) -> Entries:
        """With the numbers of every tensor, and those that all have: see `Entries`."""
        return Entries(self, own, common, subtract, () if all(part is None for part in parts) else parts)


@dataclass(frozen=True)
class Entries:
    """What becomes of the entries of some tensors, and of a base where there is one."""

    rule: Entrywise
    own: Sequence[Sequence[float]]
    """Of every tensor ``a``, or ``a`` and ``b``."""
    common: Sequence[float] = ()
    """``p``, ``q`` and ``r``, or the first of them."""
    subtract: bool = True
    """Take the base, if there is one, from the tensors; else ``d`` is their own entry."""
    parts: Sequence[Part | None] = ()
    """What stays of every task vector, see `Part`; None: all; of no tensors: all of all."""

    def __call__(self, tensors: Sequence[Tensor], base: Tensor | None = None) -> Tensor:
        """The result for all entries.

        Args:
            tensors, base: of one shape, float32 or float64; where there are parts, the next pieces.

        Raises:
            RuntimeError: a number of ``own`` or ``common`` is too large for the tensors' type.
        """
        every = [*(t for t, _ in zip(tensors, self.own, strict=True)), *([] if base is None else [base])]
        flat = [t.detach().reshape(-1).contiguous() for t in every]
        out, entries = torch.empty(tensors[0].shape, dtype=flat[0].dtype), self
        if self.parts:
            cut = zip(flat, self.parts, strict=False)  # the base comes last
            flat[: len(self.parts)] = [x - flat[-1] if part is None else part(x, flat[-1]) for x, part in cut]
            entries = replace(self, parts=(), subtract=False)
        loop = Loop(entries, [out.dtype] * (len(flat) + 1), out.dtype)
        loop(flat, out.view(-1), (np.zeros(0, bool), -1, np.zeros((0, 2)), np.zeros((0, 1), np.int64)))
        return out


class Loop:
    """The compiled loop of some entries (`isomerge.loops.entrywise`), for pieces of tensors and of the result.

    Args:
        entries: what is computed.
        dtypes: of the tensors, a base if there is one, and the result.
        wide: what is computed in.

    Raises:
        RuntimeError: a number of ``own`` or ``common`` is too large for ``wide``.
    """

    def __init__(self, entries: Entries, dtypes: Sequence[torch.dtype], wide: torch.dtype) -> None:
        from isomerge.loops import BLOCK, compiled, entrywise, kind_of

        own, number = entries.own, torch.empty(0, dtype=wide).numpy().dtype
        numbers = np.zeros((len(own) + 1, 3), number)
        for row, values in zip(numbers, [*own, entries.common], strict=True):
            with np.errstate(over="ignore"):
                row[: len(values)] = values
            if not np.isfinite(row).all():
                raise RuntimeError("a number cannot be converted without overflow")  # as torch says it
        parts = [Part() if part is None else part for part in entries.parts]
        self.seen = np.array([part.seen for part in parts], np.int64).reshape(-1, 3)
        """Of every part that is cut out."""
        for part, seen in zip(parts, self.seen, strict=True):
            part.seen = seen
        ends = np.array([[part.low, part.high, part.factor] for part in parts], number).reshape(-1, 3)
        stay = np.array([part.stay for part in parts], np.int64).reshape(-1, 2, 2)
        masks = np.array([0 if part.mask is None else part.mask.ctypes.data for part in parts], np.int64)
        tables = [numbers_of(each) for each in dtypes]
        self._numbers = np.stack([np.resize(table, max(map(len, tables))) for table in tables])
        self._kinds = np.array([kind_of(each) for each in dtypes])
        self._own, self._common, self._cuts = numbers[:-1], numbers[-1], (ends, stay, self.seen, masks)
        room = np.empty((len(dtypes) + 4, BLOCK), number)
        self._rooms, self._kept = (room, *_bits(room)), parts
        rule, self._how = entries.rule, (len(dtypes) - 1 > len(own), entries.subtract)
        self._loop = compiled(entrywise, rule.vote, rule.last, rule.take)

    def __call__(self, stored: Sequence[Tensor], place: Tensor, measures: tuple[Any, ...]) -> None:
        """The next piece of every tensor, contiguous, into a place."""
        every = (self._kinds, addresses([*stored, place]), self._numbers)
        self._loop(every, len(place), *self._how, self._own, self._common, self._cuts, self._rooms, measures)


def _of_piece(entries: Entries, parts: list[Tensor]) -> Tensor:
    count = len(entries.own)
    return entries(parts[:count], *parts[count:])


def addresses(tensors: Sequence[Tensor]) -> np.ndarray:
    """Where contiguous tensors are in memory, int64, for loops that take any number of them."""
    return np.array([t.data_ptr() for t in tensors], np.int64)


def _widen(stored: Tensor, x: Tensor) -> None:
    """Widen a piece into ``x``, unless it is itself."""
    from isomerge.loops import compiled, kind_of, widen  # numba: a quarter of a second

    if stored is not x:
        values, bits = x.numpy(), stored.view(BITS[stored.dtype]).numpy()
        compiled(widen)(kind_of(stored.dtype), bits, numbers_of(stored.dtype), values, _bits(values)[0])


def _read(stored: Tensor, x: Tensor, anchor: Tensor | None, half: bool) -> tuple[float, float, float]:
    """Widen a piece into ``x``, float32 or float64, unless it is itself: the sum of squares, that of differences
    from an anchor, and the largest magnitude. What was rounded to ``half`` precision is summed in float32: it was
    rounded by more than sums are."""
    from isomerge.loops import compiled, kind_of, read  # numba: a quarter of a second

    values, sums, top = x.numpy(), np.zeros(2), np.zeros(1, np.int64)
    bits, mask = _bits(values)
    compiled(read)(
        kind_of(stored.dtype),
        stored.view(BITS[stored.dtype]).numpy(),
        numbers_of(stored.dtype),
        values,
        bits,
        values if anchor is None else anchor.numpy(),
        np.float32(0) if half else np.float64(0),
        mask,
        sums,
        top,
    )
    return _sums_of(x, anchor, sums, top)


def _rounded(x: Tensor, out: Tensor) -> tuple[float, float, float]:
    """Round float32 to bfloat16 or float16; tells what `_read` does."""
    from isomerge.loops import compiled, kind_of, write

    values, sums, top = x.numpy(), np.zeros(2), np.zeros(1, np.int64)
    compiled(write)(kind_of(out.dtype), values, *_bits(values), sums, top, out.view(BITS[out.dtype]).numpy())
    return _sums_of(x, None, sums, top)


def _bits(values: np.ndarray) -> tuple[np.ndarray, np.unsignedinteger]:
    """Floats as unsigned integers, and all bits but the sign's."""
    if values.dtype == np.float32:
        return values.view(np.uint32), np.uint32(2**31 - 1)
    return values.view(np.uint64), np.uint64(2**63 - 1)


def _sums_of(x: Tensor, anchor: Tensor | None, sums: np.ndarray, top: np.ndarray) -> tuple[float, float, float]:
    """What a loop has told of a piece; again in float64 where that is too large for sums of float32, or no
    number."""
    square, gap = sums.tolist()
    if not (isfinite(square) and isfinite(gap)):
        square = float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2
        gap = 0.0 if anchor is None else float(torch.linalg.vector_norm(x.double() - anchor.double())) ** 2
    integer, number = (np.uint32, np.float32) if x.dtype == torch.float32 else (np.uint64, np.float64)
    return square, gap, float(top.astype(integer).view(number)[0])


@cache
def numbers_of(dtype: torch.dtype) -> np.ndarray:
    """All numbers of a type in the order of their bits, float32, where they are widened by looking them up; else
    none."""
    if dtype.itemsize > 1:
        return np.zeros(1, np.float32)
    return torch.arange(256, dtype=torch.int64).to(torch.uint8).view(dtype).float().numpy()
