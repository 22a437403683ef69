"""Optimisation on the quotient by symmetry: of live modules, by the specs of their architectures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomerge.research.optim.invariant import InvariantAdam as InvariantAdam
    from isomerge.research.optim.invariant import InvariantSGD as InvariantSGD
    from isomerge.research.optim.quotient import Quotient as Quotient
    from isomerge.research.optim.quotient import QuotientOptimizer as QuotientOptimizer
    from isomerge.research.optim.quotient import Rebalanced as Rebalanced
    from isomerge.research.optim.teleporting import Teleported as Teleported
    from isomerge.research.optim.teleporting import teleport as teleport

_HOMES = {
    "InvariantAdam": "invariant",
    "InvariantSGD": "invariant",
    "Quotient": "quotient",
    "QuotientOptimizer": "quotient",
    "Rebalanced": "quotient",
    "Teleported": "teleporting",
    "teleport": "teleporting",
}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import on first use: the optimisers are classes of torch's, which is heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
