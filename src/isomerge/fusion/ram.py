"""Reinforced Agent Merging (2026, arXiv:2601.13572): what one model alone has learned is not diluted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.fusion.bounds import changes
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import merge_method


@merge_method
@limited(bound=changes)
def ram(tensors: Sequence[Tensor], base: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """The base plus, entry by entry, the mean task vector of the models that change it.

    A model changes an entry when its task vector there is larger than ``epsilon``. Where one model does, its change
    is taken whole; where several do, their mean; smaller changes count as none.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        epsilon: largest magnitude that counts as no change.
    """
    return _merged(tensors, base, epsilon, r=0.0, alpha=0.0)


@merge_method
@limited(bound=changes)
def ramplus_tl(
    tensors: Sequence[Tensor], base: Tensor, *, r: float = 0.1, alpha: float = 0.2, epsilon: float = 1e-5
) -> Tensor:
    """RAM with unique changes scaled up: by ``1 + r clamp(rho, 0, alpha)``, what a model loses where it is
    averaged.

    ``rho`` is the number of a model's changed entries that others change too over the number that it alone changes,
    counted per tensor (tensor-local: TL).

    Args:
        tensors, base, epsilon: as in `ram`.
        r: the gain per unit of ``rho``.
        alpha: the largest ``rho`` that counts.
    """
    return _merged(tensors, base, epsilon, r=r, alpha=alpha)


def _merged(tensors: Sequence[Tensor], base: Tensor, epsilon: float, *, r: float, alpha: float) -> Tensor:

    counts = torch.zeros(base.shape, dtype=torch.int32, device=base.device)
    for tensor in tensors:
        counts += (tensor - base).abs() > epsilon
    mixed = torch.zeros_like(base)
    for tensor in tensors:
        delta = tensor - base
        delta *= delta.abs() > epsilon
        alone = counts == 1
        unique = int((delta.ne(0) & alone).sum())
        shared = int((delta.ne(0) & ~alone).sum())
        rho = shared / max(unique, epsilon)  # without unique entries it scales nothing
        gain = 1 + r * min(max(rho, 0.0), alpha)
        mixed += torch.where(alone, delta * gain, delta / counts.clamp_min(1))
    return mixed.add_(base)
