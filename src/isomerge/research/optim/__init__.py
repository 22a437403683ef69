"""Optimisation on the quotient by symmetry: of live modules, by the specs of their architectures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomerge.research.optim.invariant import InvariantAdam, InvariantSGD
    from isomerge.research.optim.quotient import Quotient, Rebalanced
    from isomerge.research.optim.teleporting import Teleported, teleport
    from isomerge.research.optim.wrapper import QuotientOptimizer

__all__ = [
    "InvariantAdam",
    "InvariantSGD",
    "Quotient",
    "QuotientOptimizer",
    "Rebalanced",
    "Teleported",
    "teleport",
]
_HOMES = {
    "InvariantAdam": "invariant",
    "InvariantSGD": "invariant",
    "Quotient": "quotient",
    "QuotientOptimizer": "wrapper",
    "Rebalanced": "quotient",
    "Teleported": "teleporting",
    "teleport": "teleporting",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the optimisers are classes of torch's, which is heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
