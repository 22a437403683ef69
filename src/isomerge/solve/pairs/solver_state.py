"""Where a solver has brought its source, kept in a file: what a search has found outlives the run that it was part
of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.solve.parts_file import load_parts, save_parts
from isomerge.symmetry.alignment import Alignment


def save_places(path: Path, solver: StreamSolver, report: dict[str, Any]) -> None:
    """Write where a solver's source is (its streams and units), complete or not at all, with a report."""
    parts = {"turn": solver.turn.elements, **{f"in {unit}": elements for unit, elements in solver.inner.items()}}
    save_parts(path, parts, {"units": list(solver.inner), "report": report})


def load_places(path: Path, solver: StreamSolver) -> dict[str, Any] | None:
    """Bring a solver's source to where `save_places` has written that it is; returns the report, None without a
    file."""
    kept = load_parts(path)
    if kept is None:
        return None
    parts, about = kept
    solver.turn = Alignment(solver.frame, parts.get("turn"))
    solver.inner = {unit: parts.get(f"in {unit}", {}) for unit in about["units"]}
    return about["report"]
