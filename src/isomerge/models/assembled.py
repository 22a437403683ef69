"""Tensors of a live module put together from stored ones, with gradients to these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Which elements of a contiguous stored tensor are which of a contiguous live one: two views of one size.

    Stacks, concatenations, transposes and chunks are such views; what is not has the positions of its elements.
    """

    size: tuple[int, ...] = ()
    stored: tuple[tuple[int, ...], int] = ((), 0)
    """Strides and offset in the stored tensor."""
    live: tuple[tuple[int, ...], int] = ((), 0)
    """Strides and offset in the live tensor."""
    elements: tuple[Tensor, Tensor] | None = None
    """Positions in the stored and in the live tensor, int64 [n] each; then the views say nothing."""

    def span(self, step: int) -> tuple[int, int]:
        """Of the parts of the live tensor, of ``step`` elements each, the first and the last that it is in."""
        if self.elements is not None:
            return int(self.elements[1].min()) // step, int(self.elements[1].max()) // step
        strides, offset = self.live
        last = offset + sum((size - 1) * stride for size, stride in zip(self.size, strides, strict=True))
        return offset // step, last // step

    def moved(self, by: int) -> Piece:
        """The same in a live tensor that has so many elements more before it."""
        if self.elements is not None:
            return replace(self, elements=(self.elements[0], self.elements[1] + by))
        return replace(self, live=(self.live[0], self.live[1] + by))

    def put(self, stored: Tensor, live: Tensor) -> None:
        """Copy from the stored tensor into the live one, in place."""
        stored = stored.contiguous()
        if self.elements is not None:
            stored_places, live_places = (x.to(live.device) for x in self.elements)
            live.view(-1)[live_places] = stored.view(-1)[stored_places].to(live)
        else:
            _viewed(live, self.size, *self.live).copy_(_viewed(stored, self.size, *self.stored))

    def take(self, live: Tensor, stored: Tensor) -> None:
        """Copy from the live tensor into the stored one, in place: the inverse of `put`."""
        live = live.contiguous()
        if self.elements is not None:
            stored_places, live_places = (x.to(live.device) for x in self.elements)
            stored.view(-1)[stored_places] = live.view(-1)[live_places]
        else:
            _viewed(stored, self.size, *self.stored).copy_(_viewed(live, self.size, *self.live))


def _viewed(x: Tensor, size: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    """A view of a contiguous tensor, which may itself begin anywhere in its memory."""
    return x.as_strided(size, strides, int(x.storage_offset()) + offset)


class _Assembled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: Sequence[Piece], shape: tuple[int, ...], *stored: Tensor) -> Tensor:
        ctx.pieces, ctx.shapes = pieces, [x.shape for x in stored]
        whole = stored[0].new_empty(shape)
        for piece, x in zip(pieces, stored, strict=True):
            piece.put(x, whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad, parts = grads[0].contiguous(), []
        for piece, shape in zip(ctx.pieces, ctx.shapes, strict=True):
            piece.take(grad, part := grad.new_zeros(shape))
            parts.append(part)
        return None, None, *parts


def assembled(pieces: Sequence[Piece], shape: tuple[int, ...], stored: Sequence[Tensor]) -> Tensor:
    """A live tensor [shape] from stored ones, each with its piece; together they fill it. Differentiable once."""
    return _Assembled.apply(pieces, shape, *stored)  # type: ignore[return-value]
