"""Loops over numbers as they are stored, compiled by numba when this file is imported and a loop first asked for.

What is compiled is kept on disk where the user may write, for all processes. Vectors are worked on in blocks that
stay in the first cache: widened, measured and rounded without another pass over memory. Blocks are summed in
float32 where that is exact enough, and added in order in float64, so that sums do not depend on threads. ``kind``
says how numbers are stored (`kind_of`), and ``numbers`` has all of a type that is looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic, register_jitable
from numba.np.numpy_support import carray

BLOCK = 4096
"""Entries of a block, whose sums of float32 are right to 1e-6."""
HOW: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
LOW = 15
"""Bits of a float32 magnitude below the sixteen that number a bin of `count_high`."""
Rule = Callable[..., Any]
"""A function of numbers that is compiled into a loop."""
FLOAT, BFLOAT16, FLOAT16, TABLE = range(4)
KINDS = {"torch.bfloat16": BFLOAT16, "torch.float16": FLOAT16, "torch.float32": FLOAT, "torch.float64": FLOAT}
"""How types are stored: as numbers that processors take, or as bits that are widened; others by a table."""


def kind_of(dtype: object) -> int:
    """How a torch type is stored."""
    return KINDS.get(str(dtype), TABLE)


@numba.njit(inline="always")
def _widen(kind: int, stored: Any, numbers: Any, x: Any, bits: Any) -> None:
    """Stored numbers as floats ``x``, whose own bits are ``bits``."""
    if kind == BFLOAT16:
        for i in range(stored.size):
            bits[i] = np.uint32(stored[i]) << np.uint32(16)
    elif kind == FLOAT16:
        scale = np.float32(2.0**112)  # between the exponents of both types
        limit = np.float32(65536)  # beyond all numbers of float16
        for i in range(stored.size):
            bits[i] = (np.uint32(stored[i]) & np.uint32(0x7FFF)) << np.uint32(13)
        for i in range(stored.size):
            x[i] *= scale
        for i in range(stored.size):
            sign = (np.uint32(stored[i]) & np.uint32(0x8000)) << np.uint32(16)
            bits[i] |= sign | (np.uint32(x[i] >= limit) * np.uint32(0x7F800000))
    elif kind == TABLE:
        for i in range(stored.size):
            x[i] = numbers[np.int64(stored[i])]
    else:
        for i in range(stored.size):
            x[i] = stored[i]


@numba.njit(**HOW)
def _measure(x: Any, bits: Any, y: Any, zero: Any, mask: Any, sums: Any, top: Any) -> None:
    square = gap = zero
    most = bits[0] & mask
    for i in range(x.size):
        v = x[i] + zero
        d = v - (y[i] + zero)
        square += v * v
        gap += d * d
    for i in range(x.size):
        most = max(most, bits[i] & mask)
    sums[0] += square
    sums[1] += gap
    top[0] = max(top[0], np.int64(most))


def widen(kind: int, stored: Any, numbers: Any, x: Any, bits: Any) -> None:
    """Widen a vector into ``x``, as `read` does, and no more."""
    for k in range(0, x.size, BLOCK):
        _widen(kind, stored[k : k + BLOCK], numbers, x[k : k + BLOCK], bits[k : k + BLOCK])


def read(
    kind: int, stored: Any, numbers: Any, x: Any, bits: Any, y: Any, zero: Any, mask: Any, sums: Any, top: Any
) -> None:
    """Widen a vector into ``x``, unless that is what is stored, and measure it.

    Args:
        x, bits: float32 or float64 [n] and the same memory as unsigned integers.
        y: what ``x`` is held against, of its type.
        zero: of the type that blocks are summed in.
        mask: all bits but the sign's.
        sums: takes the sum of squares, and that of squared differences from ``y``, float64 [2].
        top: takes the bits of the largest magnitude, int64 [1].
    """
    for k in range(0, x.size, BLOCK):
        v, w = x[k : k + BLOCK], bits[k : k + BLOCK]
        if kind != FLOAT:
            _widen(kind, stored[k : k + BLOCK], numbers, v, w)
        _measure(v, w, y[k : k + BLOCK], zero, mask, sums, top)


@numba.njit(inline="always")
def _round(kind: int, x: Any, bits: Any, out: Any) -> None:
    """Float32 to nearest even, as bits of bfloat16 or float16."""
    if kind == BFLOAT16:
        for i in range(x.size):
            out[i] = (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    else:
        for i in range(x.size):
            size = bits[i] & np.uint32(0x7FFFFFFF)
            normal = (size + np.uint32(0xC8000FFF) + ((size >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
            # the last digit of one half is the least number of float16
            tiny = (np.float32(abs(x[i]) + np.float32(0.5))).view(np.uint32) - np.uint32(0x3F000000)
            rounded = tiny if size < np.uint32(0x38800000) else normal
            rounded = np.uint32(0x7C00) if size >= np.uint32(0x47800000) else rounded
            out[i] = rounded | ((bits[i] >> np.uint32(16)) & np.uint32(0x8000))


def write(kind: int, x: Any, bits: Any, mask: Any, sums: Any, top: Any, out: Any) -> None:
    """Measure float32 as `read` does, and round it to nearest even, to bits of bfloat16 or float16."""
    for k in range(0, x.size, BLOCK):
        v, w = x[k : k + BLOCK], bits[k : k + BLOCK]
        _round(kind, v, w, out[k : k + BLOCK])
        _measure(v, w, v, np.float32(0), mask, sums, top)


def _at(_: Any, address: Any) -> Any:
    """The memory at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


_memory: Any = intrinsic(_at)


@numba.njit(inline="always")
def _vector(address: Any, like: Any) -> Any:
    """What is in memory there, of another vector's length and type."""
    return carray(_memory(address), like.size, like.dtype)


@numba.njit(**HOW)
def _load(kind: int, place: int, start: int, numbers: Any, x: Any, bits: Any) -> None:
    """Widen some of what is stored from an address on."""
    if kind == TABLE:
        _widen(TABLE, carray(_memory(place + start), x.size, np.uint8), numbers, x, bits)
    elif kind == FLOAT:
        _widen(FLOAT, _vector(place + start * x.itemsize, x), numbers, x, bits)
    else:
        _widen(kind, carray(_memory(place + 2 * start), x.size, np.uint16), numbers, x, bits)


@numba.njit(**HOW)
def _store(kind: int, place: int, start: int, x: Any, bits: Any) -> None:
    """Put it there, rounded as `write` does."""
    if kind == FLOAT:
        out = _vector(place + start * x.itemsize, x)
        for i in range(x.size):
            out[i] = x[i]
    else:
        _round(kind, x, bits, carray(_memory(place + 2 * start), x.size, np.uint16))


@numba.njit(**HOW)
def _measure_as(half: bool, x: Any, bits: Any, y: Any, mask: Any, sums: Any, top: Any) -> None:
    if half:
        _measure(x, bits, y, np.float32(0), mask, sums, top)
    else:
        _measure(x, bits, y, np.float64(0), mask, sums, top)


@numba.njit(inline="always")
def _differ(x: Any, y: Any, room: Any) -> None:
    for i in range(x.size):
        room[i] = x[i] - y[i]


def count_high(x: Any, y: Any, counts: Any) -> None:
    """Count the magnitudes of differences of float32 by their sixteen leading bits, int64 [65536]."""
    room = np.empty(BLOCK, np.float32)
    bits = room.view(np.uint32)
    for k in range(0, x.size, BLOCK):
        some = x[k : k + BLOCK]
        _differ(some, y[k : k + BLOCK], room)
        for i in range(some.size):
            counts[(bits[i] & np.uint32(0x7FFFFFFF)) >> np.uint32(LOW)] += 1


def count_low(x: Any, y: Any, high: Any, counts: Any) -> None:
    """Count those of one bin of `count_high` by the bits below, int64 [32768]."""
    room = np.empty(BLOCK, np.float32)
    bits = room.view(np.uint32)
    for k in range(0, x.size, BLOCK):
        some = x[k : k + BLOCK]
        _differ(some, y[k : k + BLOCK], room)
        for i in range(some.size):
            size = bits[i] & np.uint32(0x7FFFFFFF)
            if (size >> np.uint32(LOW)) == high:
                counts[size & np.uint32(0x7FFF)] += 1


@numba.njit(nogil=True, error_model="numpy")
def _cut(d: Any, low: Any, high: Any, factor: Any, stay: Any, seen: Any, mask: Any) -> None:
    """See `cut`."""
    zero = low * 0
    lows = highs = np.uint32(0)
    for i in range(d.size):
        lows += np.uint32(abs(d[i]) == low)
        highs += np.uint32(abs(d[i]) == high)
    a, b = seen[0], seen[1]
    seen[0], seen[1] = a + lows, b + highs
    keep_low = stay[0, 0] <= a and seen[0] <= stay[0, 1]
    keep_high = stay[1, 0] <= b and seen[1] <= stay[1, 1]
    if (keep_low or seen[0] <= stay[0, 0] or a >= stay[0, 1]) and (
        keep_high or seen[1] <= stay[1, 0] or b >= stay[1, 1]
    ):
        for i in range(d.size):
            size = abs(d[i])
            kept = (size > low) | ((size == low) & keep_low)
            d[i] = d[i] if kept & ~((size > high) | ((size == high) & ~keep_high)) else zero
    else:  # a block where one of them begins or ends
        for i in range(d.size):
            size = abs(d[i])
            kept = size > low or (size == low and stay[0, 0] <= a < stay[0, 1])
            if size > high or (size == high and not stay[1, 0] <= b < stay[1, 1]):
                kept = False
            a += size == low
            b += size == high
            if not kept:
                d[i] = zero
    if factor != 1:
        for i in range(d.size):
            d[i] *= factor
    if mask != 0:
        stays = carray(_memory(mask + seen[2]), d.size, np.uint8)
        for i in range(d.size):
            d[i] = d[i] if stays[i] else factor * 0
    seen[2] += d.size


def cut(x: Any, y: Any, low: Any, high: Any, factor: Any, stay: Any, seen: Any, mask: int, delta: Any) -> None:
    """Put what stays of the difference of two vectors, times a factor, into ``delta``; zero elsewhere.

    It stays where its size is more than ``low`` and less than ``high`` (NaN: without end), of those of either size
    where its number is in ``stay`` [2, 2], from and to; and where the ``mask`` at that address (0: none) is not
    zero. ``seen`` [3] were numbered before, of either size and of all.
    """
    for k in range(0, delta.size, BLOCK):
        d = delta[k : k + BLOCK]
        _differ(x[k : k + BLOCK], y[k : k + BLOCK], d)
        _cut(d, low, high, factor, stay, seen, mask)


def masses(x: Any, y: Any, kept: Any, sums: Any) -> None:
    """Add up the sizes of the differences of two vectors, and of what is kept of them: float64 [2]."""
    for k in range(0, x.size, BLOCK):
        u, v, w = x[k : k + BLOCK], y[k : k + BLOCK], kept[k : k + BLOCK]
        every = some = np.float64(0)
        for i in range(u.size):
            every += np.float64(abs(u[i] - v[i]))
            some += np.float64(abs(w[i]))
        sums[0] += every
        sums[1] += some


def variances(parts: Any, y: Any, out: Any) -> None:
    """The variance of every entry of some vectors less ``y``, over the vectors (Welford 1962), which are told by
    where they are in memory, int64 [n]."""
    mean, square = np.empty(BLOCK), np.empty(BLOCK)
    for k in range(0, out.size, BLOCK):
        o = out[k : k + BLOCK]
        z = y[k : k + BLOCK]
        mean[:] = 0
        square[:] = 0
        for m in range(len(parts)):
            x = _vector(parts[m], out)[k : k + BLOCK]
            for i in range(o.size):
                d = x[i] - z[i]
                step = d - mean[i]
                mean[i] += step / (m + 1)
                square[i] += step * (d - mean[i])
        for i in range(o.size):
            o[i] = square[i] / len(parts)


def descend(x: Any, mean: Any, square: Any, slope: Any, rates: Any) -> None:
    """One step of `isomerge.fusion.descent.adam`."""
    new, keep, more, root, floor, rate = rates
    for i in range(x.size):
        mean[i] += new * (slope[i] - mean[i])
        square[i] = square[i] * keep + more * slope[i] * slope[i]
        x[i] -= rate * mean[i] / (np.sqrt(square[i]) / root + floor)


def row_slopes(deltas: Any, products: Any, change: Any, total: Any, slope: Any) -> None:
    """The gradient of `isomerge.fusion.doge.correction`, of task vectors [n, out, in] and numbers [n, out]."""
    factor = -(total + total)
    for row in range(change.shape[0]):
        c, s = change[row], slope[row]
        s[:] = 0
        for m in range(deltas.shape[0]):
            d, along = deltas[m, row], np.float64(0)
            for i in range(c.size):
                along += np.float64(d[i] * c[i])
            gap = factor * (products[m, row] - total * c.dtype.type(along))
            for i in range(c.size):
                s[i] += gap * d[i]


def keep_ranked(draws: Any, order: Any, limits: Any, mask: Any) -> None:
    """The mask [rows, n] of entries whose draw is below the limit of their rank in their row; ``order`` has their
    places by rank, in its 32 lowest bits."""
    for row in range(order.shape[0]):
        for rank in range(order.shape[1]):
            i = order[row, rank] & 0xFFFFFFFF
            mask[row, i] = draws[row, i] < limits[rank]


def entrywise(vote: Rule, last: Rule, take: Rule | None) -> Callable[..., None]:
    """One pass over vectors, made of functions of single entries (see `isomerge.passes.Entrywise`): they are read
    as they are stored, measured as by `read`, cut as by `cut`, computed with; the result is measured and rounded.

    Arguments of the loop that is made, for n vectors, perhaps a base, and the result (m in all):
        stored: how each is stored, and its address, int64 [m] both; all numbers of types, float32 [m - 1, numbers].
        size: their entries.
        is_based, subtract: whether there is a base, and whether it is taken from the vectors.
        own, common: two numbers of each vector [n, 2], and three of all [3].
        cuts: of each vector low, high and factor [n, 3], and what stays, was seen and is masked [n, 2, 2], [n, 3]
            and [n]: see `cut`; of no vectors: nothing is cut.
        rooms: what is computed in, float32 or float64 [m + 4, BLOCK]; the same memory as unsigned integers; of
            which all bits but the sign's.
        measures: which are summed in float32, bool [m]; the number of the one that distances are taken from
            (negative: nothing is measured); sums and largest sizes as of `read`, float64 [m, 2] and int64 [m, 1].
    """
    each, end = (register_jitable(inline="always")(rule) for rule in (vote, last))
    again, twice = (each, False) if take is None else (register_jitable(inline="always")(take), True)
    version = repr([(rule.__code__.co_code, rule.__code__.co_consts) for rule in (vote, last, again)])

    def loop(
        stored: Any,
        size: int,
        is_based: bool,
        subtract: bool,
        own: Any,
        common: Any,
        cuts: Any,
        rooms: Any,
        measures: Any,
    ) -> None:
        _ = version  # what is kept on disk is of these functions
        (kinds, places, numbers), (ends, stay, seen, masks) = stored, cuts
        (room, bits, mask), (halves, anchor, sums, tops) = rooms, measures
        models, count, (p, q, r) = len(own), len(kinds) - 1, common
        votes, total, counted, ground = room[count + 1], room[count + 2], room[count + 3], room[count + 4]
        ground[:] = 0
        nothing = -ground[0]  # a sum of negative zeros is one
        for k in range(0, size, BLOCK):
            n = min(BLOCK, size - k)
            for m in range(count):
                _load(kinds[m], places[m], k, numbers[m], room[m, :n], bits[m, :n])
            for m in range(count if anchor >= 0 else 0):
                _measure_as(halves[m], room[m, :n], bits[m, :n], room[anchor, :n], mask, sums[m], tops[m])
            z, out = (room[models] if is_based else ground)[:n], room[count, :n]
            for m in range(len(masks)):
                _differ(room[m, :n], z, room[m, :n])
                _cut(room[m, :n], ends[m, 0], ends[m, 1], ends[m, 2], stay[m], seen[m], masks[m])
            g = z if subtract and not len(masks) else ground[:n]
            for i in range(n):
                votes[i] = nothing
            for m in range(models):
                x, a, b = room[m, :n], own[m, 0], own[m, 1]
                for i in range(n):
                    votes[i] = each(x[i] - g[i], a, b, votes[i])
            if twice:
                for i in range(n):
                    total[i] = counted[i] = nothing
                for m in range(models):
                    x, a, b = room[m, :n], own[m, 0], own[m, 1]
                    for i in range(n):
                        total[i], counted[i] = again(x[i] - g[i], a, b, votes[i], total[i], counted[i])
            for i in range(n):
                if twice:
                    out[i] = end(z[i], votes[i], total[i], counted[i], p, q, r)
                else:
                    out[i] = end(z[i], votes[i], nothing, nothing, p, q, r)
            if anchor >= 0:
                _measure_as(halves[count], out, bits[count, :n], out, mask, sums[count], tops[count])
            _store(kinds[count], places[count], k, out, bits[count, :n])

    return loop


def rows(kind: int, a: Any, b: Any, numbers: Any, zero: Any, by_column: bool, sums: Any) -> None:
    """Sums over the rows of two matrices [n, length] of one type, or over their columns: float64 [5, n or length],
    of squares of both, products, squared differences and unequal entries. ``zero`` [1] is of the type that they are
    widened to."""
    x, y = np.empty(BLOCK, zero.dtype), np.empty(BLOCK, zero.dtype)
    u, v = x.view(np.uint32), y.view(np.uint32)
    for i in range(a.shape[0]):
        for k in range(0, a.shape[1], BLOCK):
            s, t = a[i, k : k + BLOCK], b[i, k : k + BLOCK]
            _widen(kind, s, numbers, x, u)
            _widen(kind, t, numbers, y, v)
            if by_column:
                for j in range(s.size):
                    e = x[j] - y[j]
                    sums[0, k + j] += x[j] * x[j]
                    sums[1, k + j] += y[j] * y[j]
                    sums[2, k + j] += x[j] * y[j]
                    sums[3, k + j] += e * e
                    sums[4, k + j] += x[j] != y[j]
                continue
            p = q = r = d = zero[0]
            unequal = np.uint32(0)
            for j in range(s.size):
                e = x[j] - y[j]
                p += x[j] * x[j]
                q += y[j] * y[j]
                r += x[j] * y[j]
                d += e * e
            for j in range(s.size):
                unequal += np.uint32(x[j] != y[j])
            sums[0, i] += p
            sums[1, i] += q
            sums[2, i] += r
            sums[3, i] += d
            sums[4, i] += unequal


class _Kept(FunctionCache):
    """What is compiled, loaded without what numba compiles with (half a second), which it would import first."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


@cache
def compiled(loop: Callable[..., Any], *rules: Rule | None) -> Callable[..., Any]:
    """A loop, or what it makes of some ``rules``, compiled for the arguments that it is called with; kept on disk
    unless nothing can be written there. Those of rules do as they say, rounding by rounding."""
    how = {**HOW, "fastmath": False} if rules or loop in (cut, variances) else HOW
    python = loop(*rules) if rules else loop
    run = numba.njit(**how)(python)
    try:
        run._cache = _Kept(python)  # pyright: ignore[reportAttributeAccessIssue]
    except (OSError, RuntimeError):  # no folder for what is compiled
        return run

    def kept(*arguments: Any) -> Any:
        nonlocal run
        try:
            return run(*arguments)
        except OSError:  # no room in that folder
            run = numba.njit(**how)(python)
            return run(*arguments)

    return kept
