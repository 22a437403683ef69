"""The net under all methods: no merged tensor is written that its method cannot explain.

A result that is not finite, or larger than its method's bound (`isomerge.fusion.bounds`), comes of statistics that
do not fit, of rounding, or of a mistake in a method: it stops the run before the output appears.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import Inputs, Size, anything_near, size_of
from isomerge.fusion.registry import Method

ROUNDING = 1.01
"""What rounding to a half precision, and sums in float32, may add to a size."""


def check_explained(
    method: Method, result: Size | Tensor, inputs: Inputs, parameters: Mapping[str, Any], name: str
) -> None:
    """Refuse a result that its method cannot explain.

    Most results are no larger than one of the inputs, and then no more is measured.

    Args:
        method: what it is the result of.
        result: a tensor in any floating dtype, or its size.
        inputs: what the method was given.
        parameters: the method's options, as in `Method.fuse`.
        name: of the tensor, for the message.

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
    for given in inputs.each():
        seen = Size(max(seen.norm, given.norm), max(seen.largest, given.largest))
        if _within(size, seen):
            return
    limit = bound_of(method, inputs, parameters)
    if not _within(size, limit):
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


def _within(size: Size, limit: Size) -> bool:
    return size.norm <= ROUNDING * limit.norm and size.largest <= ROUNDING * limit.largest
