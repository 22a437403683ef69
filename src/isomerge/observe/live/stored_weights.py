"""The weights of a live module: what a checkpoint stores of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint stores of a module as numbers that are trained, by the module's names; tied ones once.

    Parameters, and buffers that are stored and floating point, such as the correction of a router or the bias of a
    head: whatever moves or averages weights moves these as well. They are the module's own tensors.
    """
    weights: dict[str, Tensor] = dict(module.named_parameters())
    stored = module.state_dict(keep_vars=True).keys()
    buffers = ((name, buffer) for name, buffer in module.named_buffers() if name in stored)
    return weights | {name: buffer for name, buffer in buffers if buffer.is_floating_point()}


def put_mean(module: nn.Module, states: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> None:
    """Overwrite a module's weights by ``sum_m share_m state_m``, summed in float64.

    Args:
        module: see `weights_of`.
        states: weights by the module's names; never changed.
        shares: one per state; they sum to one.
    """

    with torch.no_grad():
        for name, tensor in weights_of(module).items():
            total = torch.zeros_like(tensor, dtype=torch.float64)
            for state, share in zip(states, shares, strict=True):
                total.add_(state[name].to(total), alpha=share)
            tensor.copy_(total)
