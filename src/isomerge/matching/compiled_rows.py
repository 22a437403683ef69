"""The loops of `isomerge.matching.rows`, compiled by numba when this file is imported and first called.

What is compiled is kept on disk where the user may write, for all processes. Loops take numbers as they are stored,
[rows, length], and `sums` [5, rows or columns]: squares of both, products, squared differences, unequal entries.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

BLOCK = 4096
"""Entries that are added in float32 before the sum goes into float64."""
HOW: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract"}}


@numba.njit(inline="always")
def _add_row(x: Any, y: Any, sums: Any, i: int) -> None:
    p = q = r = d = x[0] * 0
    n = 0
    for j in range(x.size):
        p += x[j] * x[j]
        q += y[j] * y[j]
        r += x[j] * y[j]
        d += (x[j] - y[j]) * (x[j] - y[j])
        n += x[j] != y[j]
    sums[0, i] += p
    sums[1, i] += q
    sums[2, i] += r
    sums[3, i] += d
    sums[4, i] += n


@numba.njit(inline="always")
def _add_columns(x: Any, y: Any, sums: Any) -> None:
    for j in range(x.size):
        sums[0, j] += x[j] * x[j]
        sums[1, j] += y[j] * y[j]
        sums[2, j] += x[j] * y[j]
        sums[3, j] += (x[j] - y[j]) * (x[j] - y[j])
        sums[4, j] += x[j] != y[j]


@numba.njit(inline="always")
def _bfloat16(bits: Any) -> Any:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bfloat16_rows(a: Any, b: Any, numbers: Any, sums: Any) -> None:
    """Of bits of bfloat16."""
    for i in range(a.shape[0]):
        for k in range(0, a.shape[1], BLOCK):
            _add_row(_bfloat16(a[i, k : k + BLOCK]), _bfloat16(b[i, k : k + BLOCK]), sums, i)


def bfloat16_columns(a: Any, b: Any, numbers: Any, sums: Any) -> None:
    """Of bits of bfloat16."""
    for i in range(a.shape[0]):
        _add_columns(_bfloat16(a[i]), _bfloat16(b[i]), sums)


def table_rows(a: Any, b: Any, numbers: Any, sums: Any) -> None:
    """Of bits that number the entries of a table, as those of float16 and float8."""
    for i in range(a.shape[0]):
        for k in range(0, a.shape[1], BLOCK):
            _add_row(numbers[a[i, k : k + BLOCK]], numbers[b[i, k : k + BLOCK]], sums, i)


def table_columns(a: Any, b: Any, numbers: Any, sums: Any) -> None:
    """Of bits that number the entries of a table."""
    for i in range(a.shape[0]):
        _add_columns(numbers[a[i]], numbers[b[i]], sums)


def float_rows(a: Any, b: Any, numbers: Any, sums: Any) -> None:
    """Of float32 or float64."""
    for i in range(a.shape[0]):
        for k in range(0, a.shape[1], BLOCK):
            _add_row(a[i, k : k + BLOCK], b[i, k : k + BLOCK], sums, i)


def float_columns(a: Any, b: Any, numbers: Any, sums: Any) -> None:
    """Of float32 or float64."""
    for i in range(a.shape[0]):
        _add_columns(a[i], b[i], sums)


def compiled(loop: Any, *example: Any) -> Any:
    """A loop of this file, compiled for arguments like an example; kept on disk unless nothing can be written
    there."""
    for how in ({**HOW, "cache": True}, HOW):
        try:
            run = numba.njit(**how)(loop)
            run(*example)
            return run
        except (OSError, RuntimeError):  # no folder for what is compiled, or no room in it
            if how is HOW:
                raise
    raise AssertionError
