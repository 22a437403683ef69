"""SCE (Wan et al. 2024, FuseChat: Select, Calculate, Erase)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isomerge.fusion.bounds import changes
from isomerge.fusion.linear import weighted
from isomerge.fusion.method_options import SHARE, limited
from isomerge.fusion.registry import entries_method
from isomerge.fusion.trimming import Masked, lowest
from isomerge.passes import Entries, Entrywise, Part, Pass, addresses, squares
from isomerge.pieces import wide_dtype

NEGLIGIBLE = 1e-6
"""Sum of the models' mean squares below which they weigh alike, and the smallest sum of weights that is divided
by."""
Selection = tuple[Sequence[Part], list[float]]
"""What stays of task vectors (of none: all), and how much each model counts."""


def _agree(d: Any, a: Any, b: Any, votes: Any, total: Any, count: Any) -> Any:
    v = d if votes >= 0 else -d
    agrees = b if v > 0 else type(d)(0)
    return total + d * agrees, count + agrees


def _mean(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return total / max(count, p) + z


MEAN = Entrywise(weighted, _mean, _agree)


def selected(tensors: Sequence[Tensor], base: Tensor, *, select_topk: float, **_: Any) -> Selection:
    """See `Selection`.

    Args:
        tensors, base: as they are stored, of one shape.
        select_topk: as of `sce`.
    """
    reading = Pass([*tensors, base], wide_dtype([base, *tensors]))
    mask, sums = None, [0.0] * len(tensors)
    if select_topk < 1:
        spread = torch.cat([_variance(parts, origin) for *parts, origin in reading.pieces(measure=False)])
        mask = lowest(spread.neg_(), int(int(spread.count_nonzero()) * select_topk))
    chosen = [] if mask is None else [Masked(mask) for _ in tensors]
    for *parts, origin in reading.pieces(measure=False):
        for k, part in enumerate(parts):
            sums[k] += squares(chosen[k](part, origin))[0] if chosen else squares(part, origin)[1]
    total = sum(sums) / max(1, base.numel())
    shares = [1 / len(sums) if total < NEGLIGIBLE else own / sum(sums) for own in sums]
    for part in chosen:
        part.seen[:] = 0
    return chosen, shares


def _variance(tensors: Sequence[Tensor], base: Tensor) -> Tensor:
    """That of the entries over the models."""
    from isomerge.loops import compiled, variances

    tensors, base, out = [t.contiguous() for t in tensors], base.contiguous(), torch.empty_like(base)
    compiled(variances)(addresses(tensors), base.numpy(), out.numpy())
    return out


@entries_method(select=selected)
@limited(select_topk=SHARE, bound=changes)
def sce(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    select_topk: float = 1.0,
    int8_mask: bool = False,
    selection: Selection | None = None,
) -> Entries:
    """Select entries on which the models differ, calculate the models' weights, erase minority signs.

    Of the task vectors only the entries of largest variance over the models stay: ``floor(select_topk N)`` of the N
    whose variance is not zero. A model weighs the mean square of what stays of its task vector. Of each entry the
    models with the sign of the sum are averaged by these weights. (The election, as in mergekit, is not weighted.
    Where mean squares sum to less than 1e-6, as between a base and a light fine-tune, its models weigh alike.)

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        select_topk: the share of entries that stay; 1 keeps all, also those on which all models agree.
        int8_mask: accepted for mergekit's recipes; the result does not depend on it.
        selection: what `selected` gave for the whole tensors that these are pieces of.

    Raises:
        IsomergeError: a share outside of [0, 1].
    """
    chosen, shares = selected(tensors, base, select_topk=select_topk) if selection is None else selection
    return MEAN([[1.0, share] for share in shares], [NEGLIGIBLE], parts=chosen)
