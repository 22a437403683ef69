"""One model as it is, or scaled."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isomerge.fusion.bounds import scaled
from isomerge.fusion.linear import MIXED
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method, per_model, scale_free
from isomerge.passes import Entries


@entries_method
@limited(models=(1, 1), bound=scaled)
@scale_free
def passthrough(tensors: Sequence[Tensor], *, scale: Sequence[float] = per_model(1.0)) -> Entries:
    """``scale theta``.

    Args:
        tensors: one tensor of any shape.
        scale: its factor.

    Raises:
        IsomergeError: there is not exactly one model.
    """
    return MIXED([scale])
