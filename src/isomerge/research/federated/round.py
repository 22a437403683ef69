"""The models of one round of federated learning: recognised, checked, matched onto one of them or their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.evidence.distance import summarise
from isomerge.models.onto_anchor import read_onto
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.stored_form import StoredForm, cast
from isomerge.models.unit_plan import Plan, make_plan
from isomerge.observe.stats.taps import Activations
from isomerge.progress import quiet
from isomerge.research.federated.parameters import Parameters, recognised
from isomerge.run.streaming import elements_of_results
from isomerge.solve.canonical.canonical_units import CanonicalUnits
from isomerge.solve.many.mean_solutions import shares_of, undisguised
from isomerge.solve.many.mean_solver import ManySolver
from isomerge.solve.match_options import SHARES
from isomerge.solve.pairs.pair import Blocks, PairSolver, UnitResult, rows_of
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.solve.pairs.written_gains import CommonGains, gains_of_merge
from isomerge.solve.standing import own_order
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.fixed import fixed_parts

ANCHORS = ("first", "largest", "none")


@dataclass(frozen=True)
class Matching:
    """How the updates of a round are matched; see `isomerge.research.federated.aggregate`."""

    config: Any
    names: Sequence[str] | None = None
    spaces: str = "default"
    layers: str | None = None
    evidence: str = "both"
    guard: bool = True
    spec: str | Path | None = None


def weights_of(weights: Sequence[float] | None, count: int) -> list[float]:
    """One weight per update, checked.

    Raises:
        IsomergeError: another number of them, negative ones, or none above zero.
    """
    if count < 1:
        raise IsomergeError("there are no updates to average: wait for at least one client")
    shares = [1.0] * count if weights is None else [float(w) for w in weights]
    if len(shares) != count or not all(isfinite(w) and w >= 0 for w in shares) or not sum(shares):
        raise IsomergeError(f"weights: {count} numbers of examples are needed, not all zero, got {shares}")
    return shares


@dataclass
class Round:
    """The models of a round, solved: the donor stays where it is, every source has a solver."""

    models: list[Model]
    """The donor first."""
    places: list[int]
    """Where every update is among the models."""
    plan: Plan
    dtype: torch.dtype
    """The working type: float32 or float64."""
    solvers: list[PairSolver]
    results: list[list[UnitResult]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        updates: Sequence[Parameters],
        anchor: Parameters | str,
        weights: Sequence[float],
        how: Matching,
        activations: Sequence[Activations] | None = None,
    ) -> Round:
        """Recognise the models, check them, and solve what takes passes over whole models.

        Args:
            updates, anchor, activations: see `isomerge.research.federated.aggregate`.
            weights: from `weights_of`.
            how: what else it is told.
        """

        if how.evidence not in SHARES:
            raise IsomergeError(f"evidence {how.evidence!r}: choose from {', '.join(SHARES)}")
        refs, order = _in_order(updates, anchor, weights)
        each = [*updates] if isinstance(anchor, str) else [anchor, *updates]
        models = recognised({refs[k]: each[k] for k in order}, how.config, how.names, how.spec)
        together = isinstance(anchor, str) and anchor == "none"
        if together:  # whoever reports first is no anchor either
            own = own_order(models)
            models, order = [models[k] for k in own], [order[k] for k in own]
        plan, dtype = make_plan(models[0], models[1:], how.spaces, how.layers), working_dtype(models)
        solvers = [PairSolver(models[0], source, plan, dtype, guard=how.guard) for source in models[1:]]
        seen = _paired(activations, order, how.spaces)
        if plan.norms:
            for solver in solvers:
                read_onto(solver.anchor, solver.source)
        if together and solvers:
            solvers = _solve_mean(solvers, [weights[k] for k in order], seen, how)
        else:
            solvers = _solve_pairs(solvers, seen, how.evidence)
        places = [order.index(k) for k in range(len(each) - len(updates), len(each))]
        return cls(models, places, plan, dtype, solvers, [[] for _ in solvers])

    def units(self) -> Iterator[tuple[Blocks, list[Blocks]]]:
        """Every unit: the donor's blocks, and those of every update, moved."""
        donor = self.models[0]
        for unit in self.plan.units:
            own = donor.unit(unit.blocks, self.dtype)
            moved = [own]
            for k, solver in enumerate(self.solvers):
                result, blocks = solver.solve(unit, own, solver.load(solver.source, unit))
                self.results[k].append(result)
                moved.append(blocks)
            yield own, [moved[at] for at in self.places]

    def gains(self) -> CommonGains | None:
        """The gains that the average is written in, as `isomerge.merge` chooses them; None: the donor's, which
        moved updates have."""

        return gains_of_merge(self.solvers, StoredForm(self.models[0], None), quiet)

    def stored(self, blocks: Blocks, donor: Blocks) -> dict[str, Tensor]:
        """A unit's tensors by name, in the stored types; integers are the donor's."""

        first = self.models[0]
        tensors = {}
        for block, x in blocks.items():
            for canonical, part in block.split(x if x.is_floating_point() else donor[block]):
                name = first.names[canonical]
                tensors[name] = cast(part, first.checkpoint.tensors[name].dtype, name).clone()
        return tensors

    def alignments(self) -> list[Alignment]:
        """What moved every update, after all units."""

        alignments = [Alignment(self.models[0].spec)]
        alignments += [s.alignment(elements_of_results(r)) for s, r in zip(self.solvers, self.results, strict=True)]
        return [alignments[at] for at in self.places]

    def report(self) -> dict[str, Any]:
        """Distances to the donor, after all units."""

        rows = [[], *map(rows_of, self.results)]
        each = [
            {what: sqrt(sum(row[what] for row in rows[at])) for what in ("before", "after")} for at in self.places
        ]
        return {
            "anchor": self.models[0].ref,
            "distance": summarise(row for part in rows for row in part),
            "updates": each,
            "notes": list(self.plan.selection.notes),
            "fixed": fixed_parts(self.models[0].spec, self.models[0].matches.values()),
        }


def _in_order(
    updates: Sequence[Parameters], anchor: Parameters | str, weights: Sequence[float]
) -> tuple[list[str], list[int]]:
    """What the models are called (the anchor before the updates where it is parameters), and their order, donor
    first."""
    refs = [f"update {k}" for k in range(1, len(updates) + 1)]
    if not isinstance(anchor, str):
        return ["the anchor", *refs], list(range(len(refs) + 1))
    if anchor not in ANCHORS:
        raise IsomergeError(f"anchor {anchor!r}: give the server's parameters, or one of {', '.join(ANCHORS)}")
    donor = weights.index(max(weights)) if anchor == "largest" else 0
    return refs, [donor, *(k for k in range(len(refs)) if k != donor)]


def _paired(
    activations: Sequence[Activations] | None, order: Sequence[int], spaces: str
) -> list[Activations] | None:
    """Centred activations, the donor's first."""
    if activations is None:
        return None
    if len(activations) != len(order):
        raise IsomergeError(
            f"there are activations of {len(activations)} models, but {len(order)} models: give those of every "
            "update, after the anchor's where it is parameters"
        )
    if len({rows.fingerprint for rows in activations}) > 1:
        raise IsomergeError("activations are of different examples: run every model on the same ones")
    if spaces.startswith("paper"):
        raise IsomergeError(f"spaces {spaces} is an algorithm of weights alone: leave activations out")
    return [activations[k].centred() for k in order]


def _solve_pairs(
    solvers: Sequence[PairSolver], seen: Sequence[Activations] | None, evidence: str
) -> list[PairSolver]:
    """The solvers of all sources, solved by passes over each and the donor where one unit at a time does not do."""
    solved = list(solvers)
    for k, solver in enumerate(solvers, 1):
        if solver.plan.selection.frame is not None or seen is not None:
            pair = None if seen is None else (seen[0], seen[k])
            looked = solver.undisguised() if seen is None else solver
            solved[k - 1] = replace(solver, given=StreamSolver(looked, quiet, pair, evidence).solve().alignment)
        elif solver.plan.votes:
            solved[k - 1] = replace(solver, votes=solver.collect_votes())
    return solved


def _solve_mean(
    solvers: Sequence[PairSolver],
    shares: Sequence[float],
    seen: Sequence[Activations] | None,
    how: Matching,
) -> list[PairSolver]:
    """The solvers of all sources, solved at once, towards the common mean."""

    if how.spaces.startswith("paper"):
        raise IsomergeError(
            f"spaces {how.spaces!r} are matched onto one anchor here: give the server's parameters as the "
            f"anchor, or choose other spaces"
        )
    first = solvers[0]
    stored = [first.anchor, *(solver.source for solver in solvers)]
    models = stored if seen is not None else undisguised(solvers) or stored
    units = CanonicalUnits(models, first.plan, first.dtype, shares_of(shares), seen, how.evidence)
    many = ManySolver(units, quiet)
    many.solve()
    return [replace(solver, given=many.alignment(m)) for m, solver in enumerate(solvers, 1)]
