"""Optimisation on the quotient by symmetry: of live modules, by the specs of their architectures."""

from isomerge.research.optim.invariant import InvariantAdam, InvariantSGD
from isomerge.research.optim.quotient import Quotient, QuotientOptimizer, Rebalanced
from isomerge.research.optim.teleporting import Teleported, teleport

__all__ = ["InvariantAdam", "InvariantSGD", "Quotient", "QuotientOptimizer", "Rebalanced", "Teleported", "teleport"]
