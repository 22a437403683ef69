"""The net under all methods: no merged tensor is written that its method cannot explain.

A result that is not finite, or larger than its method's bound (`isomerge.fusion.bounds`), comes of statistics that
do not fit, of rounding, or of a mistake in a method: it stops the run before the output appears.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import Inputs, Size, anything_near, size_of
from isomerge.fusion.registry import Method
from isomerge.pieces import Places

ROUNDING = 1.01
"""What rounding to a half precision, and sums in float32, may add to a size."""


def check_explained(
    method: Method,
    result: Size | Tensor,
    inputs: Inputs,
    parameters: Mapping[str, Any],
    name: str,
    *,
    resolution: float = 0.0,
) -> None:
    """Refuse a result that its method cannot explain.

    Most results are no larger than one of the inputs, and then no more is measured.

    Args:
        method: what it is the result of.
        result: a tensor in any floating dtype, or its size.
        inputs: what the method was given.
        given: the method's options, as in `Method.fuse`.
        name: of the tensor, for the message.
        resolution: the smallest step of the dtype that the result was rounded to.

    Raises:
        IsomergeError: naming the tensor and the method.
    """
    size = result if isinstance(result, Size) else size_of([result])
    if not isfinite(size.norm):
        raise IsomergeError(
            f"tensor {name} has NaN or infinite values as the method {method.name} computes it: its weights, "
            "parameters or statistics are too large or do not fit these models; choose others"
        )
    seen = Size(0.0, 0.0)
    for one in inputs.each():
        seen = Size(max(seen.norm, one.norm), max(seen.largest, one.largest))
        if _within(size, seen, resolution):
            return
    limit = bound_of(method, inputs, parameters)
    if not _within(size, limit, resolution):
        what, is_, most = "norm", size.norm, limit.norm
        if is_ <= ROUNDING * most:
            what, is_, most = "largest entry", size.largest, limit.largest
        raise IsomergeError(
            f"tensor {name} has a {what} of {is_:.3g} as the method {method.name} computes it, but its inputs and "
            f"parameters explain no more than {most:.3g}: such a model does not work, so none is written; choose "
            "another method, or look at its statistics and weights"
        )


def bound_of(method: Method, inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """How large a result the method can explain."""
    values = method.values(parameters, len(inputs.tensors))
    if (size := method.explains(inputs, values)) is not None:
        return size
    defaults = method.values({}, len(inputs.tensors))
    return anything_near(inputs, {name: value for name, value in values.items() if value != defaults[name]})


def _within(size: Size, limit: Size, resolution: float) -> bool:
    return (
        size.norm <= ROUNDING * limit.norm + resolution * max(size.norm / max(size.largest, 1e-300), 1.0) ** 2
        and size.largest <= ROUNDING * limit.largest + resolution
    )


def resolution_of(dtype: torch.dtype) -> float:
    """The smallest number above zero of a dtype."""

    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


class Watched:
    """What is filled piece by piece, on its way to a file (`isomerge.pieces.Places`), and measured as it is."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._pieces: list[Size] = []

    @property
    def dtype(self) -> torch.dtype:
        """That of the pieces."""
        return self._places.dtype

    def places(self) -> Iterator[Tensor]:
        """As those that are watched."""
        for piece in self._places.places():
            yield piece
            self._pieces.append(size_of([piece]))

    @property
    def size(self) -> Size:
        """Of all that was filled."""
        return _whole(self._pieces)


def _whole(sizes: Sequence[Size]) -> Size:
    return Size(sum(size.norm**2 for size in sizes) ** 0.5, max((size.largest for size in sizes), default=0.0))
