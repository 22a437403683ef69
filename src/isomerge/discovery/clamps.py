"""Clamps of a specimen, set where some inputs reach them.

A clamp that no input reaches hides that factors of what it cuts are no symmetries; one that no input reaches in one
channel hides it there. One that cuts most inputs leaves too few to tell parameters apart: it stands high.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from isomerge.discovery.specimen import Specimen

NAMES = ("limit", "swiglu_limit", "clip_qkv")
"""What modules call the number beyond which they cut."""
MOST = 0.6
"""The largest number at which a specimen's clamps are left: some inputs reach it."""
SHARE = 0.9
"""Of what the channel that is least in size comes to, where a clamp is to cut in every channel."""
ROUNDS = 8
"""How often: where the first layers cut, less arrives at the next."""
_CLAMPS = {torch.clamp, torch.clip, Tensor.clamp, Tensor.clip}


def lower_clamps(specimen: Specimen, *, everywhere: bool = False) -> None:
    """Set the clamps of a specimen's modules where its inputs reach them.

    Args:
        specimen: with the inputs that count.
        everywhere: whether what is cut on both sides is cut in every channel.
    """
    held, bound = list(_held(specimen.module)), MOST
    for _ in range(ROUNDS if held else 0):
        for module, name in held:
            setattr(module, name, bound)
        with torch.no_grad(), _Cut(bound) as seen:
            specimen.flat_outputs()
        if seen.least > bound or not everywhere:
            return
        bound = SHARE * seen.least


def _held(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules that cut, and what they call the number."""
    for part in module.modules():
        for name in NAMES:
            if isinstance(bound := getattr(part, name, None), float) and MOST < bound < float("inf"):
                yield part, name


class _Cut(TorchFunctionMode):
    """What is cut at a bound on both sides while it is entered: the least that a channel comes to."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound, self.least = bound, float("inf")

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        arguments = {**dict(zip(("input", "min", "max"), args, strict=False)), **(kwargs or {})}
        sides = (arguments.get("min"), arguments.get("max"))
        if func in _CLAMPS and sides == (-self.bound, self.bound) and arguments["input"].numel():
            sizes = arguments["input"].detach().abs().flatten(0, -2).amax(0)
            self.least = min(self.least, float(sizes.min()))
        return func(*args, **(kwargs or {}))
