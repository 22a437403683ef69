"""Chunked attention: the plain one to rounding, in values and gradients, without a T x T matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from depth import more
from isomerge.research.relational.attention import RelationalAttention, attend


def drawn(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of two groups of three heads, keys and values of other sizes; they want gradients."""
    rng = torch.Generator().manual_seed(0)
    shapes = (2, 2, 3, length, 4), (2, 2, length, 4), (2, 2, length, 5)
    q, k, v = (torch.randn(s, generator=rng, dtype=dtype).requires_grad_() for s in shapes)
    return q, k, v


def both(length: int, chunk: int, causal: bool, mask: Tensor | None, dtype: torch.dtype) -> list[list[Tensor]]:
    """Values and gradients, plain and in chunks."""
    found = []
    for size in (None, chunk):
        x = drawn(length, dtype=dtype)
        out = attend(x[0], x[1], x[2], mask, causal, size)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=dtype)
        found.append([out.detach(), *torch.autograd.grad((out * weights).sum(), x)])
    return found


@settings(max_examples=25)
@given(st.integers(1, 17), st.integers(1, 20), st.booleans(), st.booleans(), st.integers(0, 3))
def test_chunked_is_plain(length: int, chunk: int, causal: bool, masked: bool, seed: int) -> None:
    """For chunks that divide the length and that do not, padding anywhere, even a row that may read nothing."""
    mask = None
    if masked:
        mask = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < 0.6
    for plain, chunked in zip(*both(length, chunk, causal, mask, torch.float64), strict=True):
        torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=1e-12)  # sums in another order


def test_chunked_is_plain_in_single_precision() -> None:
    """Scores of unit size: a few roundings of 6e-8."""
    for plain, chunked in zip(*both(33, 8, True, None, torch.float32), strict=True):
        torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=3e-6)
    out, *_ = both(33, 8, True, None, torch.float32)[0]
    assert out.dtype == torch.float32


def test_large_scores_do_not_overflow() -> None:
    """The online maximum is what keeps exp finite; without it exp(1e3) is infinite in float64 too."""
    q, k, v = drawn(13)
    plain, chunked = (attend(q * 1e3, k, v, None, False, c) for c in (None, 4))
    assert chunked.isfinite().all()
    torch.testing.assert_close(chunked, plain, rtol=1e-9, atol=1e-9)


def test_a_row_that_reads_nothing_is_zero() -> None:
    """In both forms, with finite gradients."""
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0] = False
    for out, *grads in both(7, 3, False, mask, torch.float64):
        assert not out[0].any()
        assert out[1].any()
        assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("causal", [True, *more(False)])
def test_gradcheck(causal: bool) -> None:
    """The backward pass against finite differences."""
    mask = torch.tensor([[True] * 5, [True, False, True, True, True]])
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, mask, causal, 2), drawn(5))


class Largest(TorchDispatchMode):
    """Records the largest number of elements of any tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation."""
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel())
        return out


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_the_square_never_exists(rank: int | None, causal: bool) -> None:
    """Forward and backward, no operation returns T x T numbers in chunks; the plain form does."""
    length, largest = 256, {}
    for chunk in (None, 16):
        torch.manual_seed(0)
        attention = RelationalAttention(8, 2, rank, chunk=chunk)
        grams = torch.randn(1, length, 8, requires_grad=True)
        with Largest() as seen:
            attention(grams, torch.eye(8), causal=causal).square().sum().backward()
        assert grams.grad is not None
        largest[chunk] = seen.elements
    assert largest[None] >= length**2
    assert largest[16] < length**2 / 4
