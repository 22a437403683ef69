"""Draws: what is chosen at random, and comes out the same on every machine, in every release of torch and for every
larger table.

Numbers come from a name and a salt. Without a salt they are public: whoever changes a model may know which of its
rows count.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

ROWS = 32
"""Rows of a table that one draw takes, or sums that a sketch has."""
FEW = 1 << 13
"""Numbers that are kept, where they may be asked for again."""
PIECE = 1 << 13
"""Rows that a sketch converts at once."""
GOLDEN, FIRST, SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""The constants of splitmix64 (Steele, Lea, Flood 2014), as signed numbers."""


def salted(salt: str) -> str:
    """What is told of a salt, so that two can be compared: nothing of none, else sixteen hexadecimal digits."""
    return hashlib.blake2b(salt.encode(), digest_size=8, person=b"isomerge-salt").hexdigest() if salt else ""


def codes(name: str, count: int, salt: str = "") -> Tensor:
    """int64 [count], pseudo-random; of a larger count, the first ones are the same. Not to be written to."""
    return _few_codes(name, count, salt) if count <= FEW else _codes(name, count, salt)


@lru_cache(256)  # every unit draws the same ones for its spaces
def _few_codes(name: str, count: int, salt: str) -> Tensor:
    return _codes(name, count, salt)


def _codes(name: str, count: int, salt: str) -> Tensor:
    digest = hashlib.blake2b(name.encode(), key=hashlib.blake2b(salt.encode()).digest()[:32], digest_size=8)
    seed = int.from_bytes(digest.digest(), "big", signed=True)
    x = (torch.arange(1, count + 1) * GOLDEN) + seed
    x = (x ^ _right(x, 30)) * FIRST
    x = (x ^ _right(x, 27)) * SECOND
    return x ^ _right(x, 31)


def _right(x: Tensor, by: int) -> Tensor:
    """A shift that fills with zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def signs(name: str, rows: int, count: int, salt: str = "") -> Tensor:
    """int64 [rows, count] of 1 and -1; there may be 64 rows."""

    return ((codes(name, count, salt) >> torch.arange(rows)[:, None]) & 1) * 2 - 1


def chosen(name: str, count: int, draw: int = 0, salt: str = "") -> list[int]:
    """`ROWS` of so many numbers, the ``draw``-th lot: of more numbers, most of the same ones."""
    order = codes(name, count, salt).argsort(stable=True)
    return sorted(order[draw * ROWS : (draw + 1) * ROWS].tolist())


def drawn_places(name: str, count: int, size: int, salt: str = "") -> Tensor:
    """int64: at most ``count`` different ones of ``size`` places, rising."""
    return (_right(codes(name, count, salt), 1) % size).unique()


def sketch(name: str, rows: Tensor, dtype: torch.dtype, salt: str = "") -> Tensor:
    """All rows in at most `ROWS` sums with random signs, [sums, *]: every row counts in one, and its place is told.
    Few are as they are.

    Args:
        name: what signs and sums are drawn by.
        rows: [rows, *], of any dtype; it is converted a piece at a time.
        dtype: of the work and of the result.
    """

    if len(rows) <= ROWS:
        return rows.to(dtype)
    drawn = codes(name, len(rows), salt)
    sums = torch.zeros(ROWS, *rows.shape[1:], dtype=dtype)
    for begin in range(0, len(rows), PIECE):
        code, piece = drawn[begin : begin + PIECE], rows[begin : begin + PIECE].to(dtype)
        sign = ((code & 1) * 2 - 1).to(dtype).reshape(-1, *(1 for _ in rows.shape[1:]))
        sums.index_add_(0, _right(code, 1) % ROWS, piece * sign)
    return sums


def by_norm(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All rows in at most `ROWS` sums of neighbours by length, [sums, width], whatever order they are stored in;
    and the lengths, falling."""

    lengths = torch.cat([piece.to(dtype).norm(dim=-1) for piece in rows.split(PIECE)])
    falling, order = lengths.sort(descending=True, stable=True)
    count = min(ROWS, len(rows))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(rows)) * count // max(len(rows), 1)
    sums = torch.zeros(count, rows.shape[-1], dtype=dtype)
    for begin in range(0, len(rows), PIECE):
        sums.index_add_(0, place[begin : begin + PIECE], rows[begin : begin + PIECE].to(dtype))
    return sums, falling
