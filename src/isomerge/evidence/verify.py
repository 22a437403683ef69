"""Comparing two checkpoints without writing: distances as stored and aligned, and the proof of sameness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isomerge.evidence.distance import SAME, relative_residuals, summarise, verdict

if TYPE_CHECKING:
    from isomerge.engine.pair import PairSolver
    from isomerge.engine.run import Observer
    from isomerge.symmetry.units import Unit


def compare(solver: PairSolver, observer: Observer, *, kin: bool = False) -> dict[str, Any]:
    """Distances before and after alignment, the residual that no symmetry explains, and the verdict.

    ``kin`` is whether their fingerprints have a common base, which these distances need not show.

    Reads every tensor of both models once (twice where a space ties a whole stack). Returns a report with
    ``distance`` (see `summarise`), ``residual`` (the largest relative one, its tensor, the tolerance), ``same`` and
    ``verdict``.
    """
    from isomerge.engine.plan import unit_bytes
    from isomerge.engine.run import rows_of

    units = solver.plan.units
    total = sum(unit_bytes(solver.anchor, unit) for unit in units)
    seen = 0
    streams: list[dict[str, Any]] = []
    if solver.plan.selection.frame is not None:
        from isomerge.engine.streams import StreamSolver

        found_streams = StreamSolver(solver, observer).solve()
        solver.given, streams = found_streams.alignment, [found_streams.report]
    elif solver.plan.votes:
        solver.collect_votes()
    results = []
    for unit in units:
        observer(unit.key, seen, total)
        anchor, source = solver.load(solver.anchor, unit), solver.load(solver.source, unit)
        results.append(solver.solve(unit, anchor, source)[0])
        seen += unit_bytes(solver.anchor, unit)
    rows = rows_of(results)
    if streams:
        solver.votes = {}
    found = prove(solver, observer)
    movable = [row for row in rows if row["spaces"]] or rows
    figures = summarise(movable)
    norm = max(figures["norm"], 1e-300)
    found["distance"] = summarise(rows)
    found["relative"] = {"before": figures["before"] / norm, "after": figures["after"] / norm}
    found["streams"], found["notes"] = streams, list(solver.plan.selection.notes)
    found["verdict"] = verdict(found["same"], **found["relative"], streams=_streams(solver), kin=kin)
    return found


def _streams(solver: PairSolver) -> str:
    """What is known of the residual streams: ``matched``, ``free`` (not matched, but they could be), or nothing."""
    from isomerge.engine.plan import gives_out_streams

    if solver.plan.selection.frame is not None:
        return "matched"
    free = solver.anchor.spec.streams and not any(map(gives_out_streams, (solver.anchor, solver.source)))
    return "free" if free else ""


def prove(solver: PairSolver, observer: Observer) -> dict[str, Any]:
    """Whether two models are the same function modulo the symmetries of their spec, algebraically.

    Both are moved to their canonical gauges and matched; what is left over must be within the rounding of the
    coarsest stored dtype of their unit, tensor by tensor. Models that differ are compared once more with their norm
    gains folded and the source's residual stream in the anchor's order.
    """
    found = _residual(solver, observer)
    if not found["same"]:
        solver.frame_residual_stream(observer)
        framed = _residual(solver, observer)
        found = framed if framed["same"] else found
        solver.frames, solver.votes = {}, {}
    same = found.pop("same")
    return {
        "same": same,
        "dead_blocks": found.pop("dead_blocks"),
        "residual": found,
        "compared": sum(len(unit.blocks) for unit in solver.plan.units),
        "only_in_one": _only_in_one(solver),
    }


def refute(solver: PairSolver, difference: float, tensor: str, tolerance: float) -> dict[str, Any]:
    """What `prove` returns for models that their fingerprints tell apart as a whole; nothing is matched."""
    return {
        "same": False,
        "dead_blocks": [],
        "residual": {"largest": difference, "tensor": tensor, "tolerance": tolerance, "layers": {}},
        "compared": sum(len(unit.blocks) for unit in solver.plan.units),
        "only_in_one": _only_in_one(solver),
    }


def _residual(solver: PairSolver, observer: Observer) -> dict[str, Any]:
    """The largest relative residual (against its own tolerance), its tensor, the largest of every layer."""
    from isomerge.engine.pair import residuals
    from isomerge.engine.plan import unit_bytes, unit_layer

    total, seen = sum(unit_bytes(solver.anchor, unit) for unit in solver.plan.units), 0
    if solver.plan.votes and not solver.votes:
        solver.collect_votes()
    worst: dict[str, Any] = {"largest": 0.0, "tensor": "", "tolerance": SAME["F64"]}
    layers: dict[str, float] = {}
    dead: list[str] = []
    same = True
    for unit in solver.plan.units:
        observer(unit.key, seen, total)
        seen += unit_bytes(solver.anchor, unit)
        rows, here = residuals(solver, unit)
        dead += here
        largest, tensor = relative_residuals(rows)
        tolerance = _tolerance(solver, unit)
        same = same and largest <= tolerance
        layer = "outside" if unit_layer(unit) is None else str(unit_layer(unit))
        layers[layer] = max(largest, layers.get(layer, 0.0))
        if largest / tolerance >= worst["largest"] / worst["tolerance"]:
            worst = {"largest": largest, "tensor": tensor, "tolerance": tolerance}
    return {**worst, "layers": layers, "dead_blocks": dead, "same": same}


def _tolerance(solver: PairSolver, unit: Unit) -> float:
    """What the rounding of the coarsest dtype of a unit explains; integers must agree exactly."""
    codes = {
        model.checkpoint.tensors[name].dtype
        for model in (solver.anchor, solver.source)
        for block in unit.blocks
        for canonical in block.canonical
        if (name := model.names.get(canonical)) is not None
    }
    return max((SAME[code] for code in codes if code in SAME), default=SAME["F64"])


def _only_in_one(solver: PairSolver) -> list[str]:
    """Tensors that the other model lacks: they are not compared."""
    found = set()
    for one, two in ((solver.anchor, solver.source), (solver.source, solver.anchor)):
        found |= {m.canonical for m in one.matches.values() if two.source_of(m.canonical, m) is None}
    return sorted(found)
