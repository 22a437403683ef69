"""Where a solver has brought its source, kept in a file: what a search has found outlives the run that it was part of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.engine.streams import StreamSolver


def save_places(path: Path, solver: StreamSolver, report: dict[str, Any]) -> None:
    """Write where a solver's source is (its streams and units), complete or not at all, with a report."""
    from safetensors.torch import save_file

    parts = {"turn": solver.turn.elements, **{f"in {unit}": found for unit, found in solver.inner.items()}}
    tensors = {f"{part}/{key}": g.contiguous() for part, found in parts.items() for key, g in found.items()}
    about = {"units": list(solver.inner), "report": report}
    beside = path.with_suffix(".new")
    save_file(tensors, str(beside), metadata={"isomerge": json.dumps(about)})
    os.replace(beside, path)


def load_places(path: Path, solver: StreamSolver) -> dict[str, Any] | None:
    """Bring a solver's source to where `save_places` has written that it is; returns the report, None without a file."""
    from safetensors import safe_open

    if not path.exists():
        return None
    parts: dict[str, dict[str, Tensor]] = {}
    with safe_open(str(path), "pt") as file:
        about = json.loads((file.metadata() or {})["isomerge"])
        for name in file.keys():  # noqa: SIM118
            part, _, key = name.rpartition("/")
            parts.setdefault(part, {})[key] = file.get_tensor(name)
    solver.turn = Alignment(solver.frame, parts.get("turn"))
    solver.inner = {unit: parts.get(f"in {unit}", {}) for unit in about["units"]}
    return about["report"]
