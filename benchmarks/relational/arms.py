"""What is compared: a model and how it is trained, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.relational.models import RANK, Relational, Standard
from benchmarks.relational.orbits import Factors, Orbit

BETAS = (0.9, 0.99)
REBALANCE_EVERY = 20


class Optimizer(Protocol):
    """What training needs of an optimiser."""

    def step(self) -> Any:
        """Change the weights."""
        ...

    def zero_grad(self) -> Any:
        """Forget the gradients."""
        ...


Built = tuple[Optimizer, list[dict[str, Any]]]
"""An optimiser, and the groups whose ``lr`` is the learning rate."""


def adam(model: nn.Module) -> tuple[torch.optim.AdamW, list[dict[str, Any]]]:
    """AdamW without decay, and its groups."""
    found = torch.optim.AdamW(model.parameters(), betas=BETAS, weight_decay=0.0)
    return found, found.param_groups


def quotient(rebalance_every: int) -> Callable[[nn.Module], Built]:
    """AdamW whose every step is made horizontal; every so many steps the weights are balanced (0: never)."""

    def build(model: nn.Module) -> Built:
        from isomerge.quotient.optim import QuotientOptimizer

        inner, groups = adam(model)
        return QuotientOptimizer(inner, model, rebalance_every=rebalance_every), groups

    return build


def invariant(model: nn.Module) -> Built:
    """Adam whose steps do not depend on where on its orbit the model is."""
    from isomerge.quotient.optim import InvariantAdam

    found = InvariantAdam(model, lr=1e-3, betas=BETAS, weight_decay=0.0)
    return found, found.param_groups


@dataclass(frozen=True)
class Arm:
    """One column of the comparison."""

    label: str
    model: Callable[[str, int], Any]
    """From the task's name and the seed; ``.model`` is what is trained."""
    optimizer: Callable[[nn.Module], Built]
    orbit: Callable[[Any], Orbit | Factors] = Orbit
    """The gauge that the model's heads have."""


ARMS = {
    "standard": Arm("AdamW (standard)", Standard, adam),
    "quotient": Arm("quotient AdamW", Standard, quotient(0)),
    "rebalanced": Arm(
        f"quotient AdamW + balancing every {REBALANCE_EVERY} steps", Standard, quotient(REBALANCE_EVERY)
    ),
    "invariant": Arm("invariant Adam", Standard, invariant),
    "relational": Arm(f"relational (rank {RANK})", lambda task, seed: Relational(task, seed, RANK), adam, Factors),
    "forms": Arm("relational (full forms)", lambda task, seed: Relational(task, seed, None), adam, Factors),
}
