"""Forward passes that are looked into, and that end as soon as enough has been seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.observe.losses import outputs_of

Place = tuple[str, str]
"""A submodule's name, or what else it is called by who watches it, and a side of it: ``in`` or ``out``."""


class SeenEnough(Exception):  # noqa: N818 (a signal, as StopIteration is)
    """Ends a forward pass: everything that was asked for has been seen."""


def run_until(
    module: nn.Module, batch: Mapping[str, Tensor], calls: Mapping[Place, int]
) -> dict[Place, list[Tensor]]:
    """What a module's places see of a batch, float64 [rows, width] without padding, one tensor per call.

    The forward pass ends as soon as every place was called as often as ``calls`` says; those that are called less
    often are there with fewer tensors.
    """
    rows: dict[Place, list[Tensor]] = {place: [] for place in calls}
    mask = batch.get("attention_mask")
    missing = dict(calls)

    def keep(place: Place, x: Tensor) -> None:
        rows[place].append(rows_of_tokens(x, mask))
        missing[place] -= 1
        if all(count <= 0 for count in missing.values()):
            raise SeenEnough

    with ExitStack() as hooks:
        for path, side in calls:
            watch(hooks, module.get_submodule(path), (path, side), keep)
        with suppress(SeenEnough):
            outputs_of(module, batch)
    return rows


def rows_of_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Activations [..., width] as float64 [rows, width], in memory of their own, without padding.

    Layers that read tokens one below the other ([examples * length, width]) are masked like others.
    """
    flat = x.detach().reshape(-1, x.shape[-1])
    if mask is not None and len(flat) == mask.numel():
        flat = flat[mask.to(flat.device).flatten() == 1]
    return flat.to(torch.float64, copy=True)


def watch(hooks: ExitStack, part: nn.Module, place: Place, see: Callable[[Place, Tensor], Any]) -> None:
    """While ``hooks`` lasts, call ``see`` with what one side of a submodule is given (first, or by name) or gives.

    What ``see`` returns for an output takes that output's place, unless it is None.
    """

    def before(_module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        see(place, inputs[0] if inputs else next(iter(named.values())))

    def after(_module: Any, _given: Any, output: Any) -> Any:
        return see(place, output)

    handle = (
        part.register_forward_pre_hook(before, with_kwargs=True)
        if place[1] == "in"
        else part.register_forward_hook(after)
    )
    hooks.callback(handle.remove)
