"""PCB-merging (Du et al. 2024, Parameter Competition Balancing for Model Merging)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import in_directions
from isomerge.fusion.method_options import SHARE, Range, limited
from isomerge.fusion.registry import merge_method, per_model
from isomerge.fusion.trimming import kth_smallest

NEGLIGIBLE = 1e-12
"""Sum of scores below which nothing is divided (theirs)."""


@merge_method
@limited(density=SHARE, clamp=Range(0, 0.5), bound=in_directions)
def pcb(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    weight: Sequence[float] = per_model(1.0),
    density: float = 0.1,
    clamp: float = 1e-4,
    lambda_: float = 1.0,
) -> Tensor:
    """Parameter competition balancing: entries count by how strong they are in their task and how much the tasks
    agree on them.

    ``base + lambda sum_m w_m s_m d_m / sum_m s_m`` with ``d_m`` the task vectors, their extreme magnitudes clamped,
    and scores ``s_m``: ``exp(n N(|d_m|)^2) tanh(delta_m sum_j delta_j)``, of which the largest share ``density`` is
    kept above zero; ``N`` maps to [0, 1]. (The authors' code; the paper's softmax differs from it by factors that
    ``N`` takes away. Theirs ranks all parameters of a model together, here each tensor's own.)

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        weight: one coefficient per model (the paper searches for them).
        density: the share of the entries of a model that count.
        clamp: the share of the smallest and of the largest magnitudes that are set to the next.
        lambda_: scales what is added.

    Raises:
        IsomergeError: a share outside of [0, 1].
    """
    deltas = [(t - base).reshape(-1) for t in tensors]
    if not base.numel():
        return base.clone()
    together = sum(deltas[1:], deltas[0].clone())
    mixed, scores = torch.zeros_like(deltas[0]), torch.zeros_like(deltas[0])
    for delta, share in zip(deltas, weight, strict=True):
        size = clamped(delta.abs(), clamp, clamp)
        score = spread(size.clone()).square_().mul_(len(deltas)).exp_().mul_(torch.tanh(delta * together))
        score = spread(clamped(score, 1 - density, 0))
        mixed.addcmul_(delta.sign().mul_(size), score, value=share)
        scores += score
    mixed /= scores.clamp_min_(NEGLIGIBLE)
    return torch.add(base, mixed.reshape(base.shape), alpha=lambda_)


def clamped(values: Tensor, low: float, high: float) -> Tensor:
    """A vector, in place, with its lowest share ``low`` raised to the next entry and its highest share ``high``
    lowered."""
    count, room = len(values), values.clone()
    least = kth_smallest(room, min(int(count * low), count - 1) + 1)
    most = kth_smallest(room, max(int(count * (1 - high) - 1), 0) + 1)
    return values.clamp_(least, max(least, most))


def spread(values: Tensor) -> Tensor:
    """A vector, in place, mapped to [0, 1], its least entry to 0 and its largest to 1; ones where all are equal: no
    entry is before another."""
    least, most = torch.aminmax(values)
    width = most - least
    return values.fill_(1) if not float(width) > 0 else values.sub_(least).div_(width)
