"""Buffers of optimisers, carried along when the parameters are moved by a group element."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from isomerge.errors import IsomergeError
from isomerge.research.optim.movement import Movement

GRADIENTS = ("momentum_buffer", "exp_avg", "grad_avg")
"""Averages of gradients, by the names that torch gives them."""
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
"""Averages or sums of squared gradients."""
INVARIANT = ("invariant_sq",)
"""What no symmetry changes."""


def transport(movement: Movement, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Move the buffers of optimisers as a movement moves gradients and their squares, in place.

    Args:
        movement: that the parameters make.
        optimizers: whose state has tensors of the parameters' shapes under torch's names.

    Raises:
        IsomergeError: a buffer of a parameter's shape with another name; nothing has been moved then.
    """
    layout = movement.space.layout
    own = {id(p): p for p in layout.parameters}
    every = list(optimizers)
    for optimizer in every:
        for parameter, state in optimizer.state.items():
            for name, value in state.items() if id(parameter) in own else ():
                known = name in (*GRADIENTS, *SQUARES, *INVARIANT)
                if not known and getattr(value, "shape", None) == parameter.shape and parameter.ndim:
                    raise IsomergeError(
                        f"{type(optimizer).__name__} keeps {name} for every parameter, of which it is not "
                        "known how it transforms: re-gauge with SGD, Adam or another optimiser of torch's that "
                        "averages gradients"
                    )
    for optimizer in every:
        for name in (*GRADIENTS, *SQUARES):
            _carry(movement, optimizer, name)


def _carry(movement: Movement, optimizer: torch.optim.Optimizer, name: str) -> None:
    """One buffer of all parameters; those that have none count as zero."""

    layout = movement.space.layout
    states = [optimizer.state.get(p, {}) for p in layout.parameters]
    there = [state.get(name) for state in states]
    if all(value is None for value in there):
        return
    filled = [torch.zeros_like(p) if v is None else v for v, p in zip(there, layout.parameters, strict=True)]
    flat = layout.gather(filled, torch.float64)
    (movement.squares if name in SQUARES else movement.gradients)(flat)
    layout.scatter(flat, filled)
