"""Comparing two checkpoints without writing: distances as stored and aligned, and the proof of sameness."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isomerge.evidence.distance import SAME, relative_residuals, summarise, verdict

if TYPE_CHECKING:
    from isomerge.engine.pair import PairSolver

Observer = Callable[[str, int, int], None]


def compare(solver: PairSolver, observer: Observer) -> dict[str, Any]:
    """Distances before and after alignment, the residual that no symmetry explains, and the verdict.

    Reads every tensor of both models once (twice where a space ties a whole stack). Returns a report with
    ``distance`` (see `summarise`), ``residual`` (the largest relative one, its tensor, the tolerance), ``same`` and
    ``verdict``.
    """
    from isomerge.engine.plan import unit_bytes
    from isomerge.engine.run import rows_of

    units = solver.plan.units
    total = sum(unit_bytes(solver.anchor, unit) for unit in units)
    seen = 0
    if solver.plan.votes:
        solver.collect_votes()
    results = []
    for unit in units:
        observer(unit.key, seen, total)
        anchor, source = solver.load(solver.anchor, unit), solver.load(solver.source, unit)
        results.append(solver.solve(unit, anchor, source)[0])
        seen += unit_bytes(solver.anchor, unit)
    rows = rows_of(results)
    found = prove(solver, lambda what, done, all_: None)
    movable = [row for row in rows if row["spaces"]] or rows
    figures = summarise(movable)
    norm = max(figures["norm"], 1e-300)
    found["distance"] = summarise(rows)
    found["relative"] = {"before": figures["before"] / norm, "after": figures["after"] / norm}
    found["verdict"] = verdict(found["same"], **found["relative"])
    return found


def prove(solver: PairSolver, observer: Observer) -> dict[str, Any]:
    """Whether two models are the same function modulo the symmetries of their spec, algebraically.

    Both are moved to their canonical gauges and matched; what is left over must be within the rounding of the
    coarser stored dtype, tensor by tensor. Models that differ are compared once more with their norm gains folded
    and the source's residual stream in the anchor's order.
    """
    worst, where, layers = _largest_residual(solver, observer)
    codes = {i.dtype for m in (solver.anchor, solver.source) for i in m.checkpoint.tensors.values()}
    tolerance = max((SAME[c] for c in codes if c in SAME), default=0.0)
    if worst > tolerance:
        solver.frame_residual_stream()
        framed = _largest_residual(solver, observer)
        if framed[0] <= tolerance:
            worst, where, layers = framed
        solver.frames, solver.votes = {}, {}
    return {
        "same": worst <= tolerance,
        "residual": {"largest": worst, "tensor": where, "tolerance": tolerance, "layers": layers},
        "compared": sum(len(unit.blocks) for unit in solver.plan.units),
        "only_in_one": _only_in_one(solver),
    }


def _largest_residual(solver: PairSolver, observer: Observer) -> tuple[float, str, dict[str, float]]:
    """The largest relative residual of any tensor, which one, and the largest of every layer."""
    from isomerge.engine.pair import residuals
    from isomerge.engine.plan import unit_bytes, unit_layer

    total, seen = sum(unit_bytes(solver.anchor, unit) for unit in solver.plan.units), 0
    if solver.plan.votes and not solver.votes:
        solver.collect_votes()
    worst, where = 0.0, ""
    layers: dict[str, float] = {}
    for unit in solver.plan.units:
        observer(unit.key, seen, total)
        seen += unit_bytes(solver.anchor, unit)
        found, tensor = relative_residuals(residuals(solver, unit))
        layer = "outside" if unit_layer(unit) is None else str(unit_layer(unit))
        layers[layer] = max(found, layers.get(layer, 0.0))
        if found >= worst:
            worst, where = found, tensor
    return worst, where, layers


def _only_in_one(solver: PairSolver) -> list[str]:
    """Tensors that the other model lacks: they are not compared."""
    found = set()
    for one, two in ((solver.anchor, solver.source), (solver.source, solver.anchor)):
        found |= {m.canonical for m in one.matches.values() if two.source_of(m.canonical, m) is None}
    return sorted(found)
