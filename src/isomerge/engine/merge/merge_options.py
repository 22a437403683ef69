"""What a merge does beside fusing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isomerge.engine.models import Model
from isomerge.engine.pairs.match_options import WEIGHTS, Matching


@dataclass(frozen=True)
class MergeOptions:
    """What a merge does beside fusing: how it aligns, and what is done to the result."""

    align: bool = True
    spaces: str = "default"
    layers: str | None = None
    matching: Matching = WEIGHTS
    anchor: str = "first"
    """With ``none`` all models are matched onto their common mean (`isomerge.engine.many.solver`), which is written in the first
    model's coordinates."""
    onto: int = 0
    """The number of the model that the others are aligned onto."""
    source_bases: Sequence[Model | None] = ()
    """What the models that are fused were tuned from, where that is not the base (`TransplantSolver`)."""
    stats: Sequence[str] = ()
    """Files of `isomerge stats` for methods that ask for statistics, one per model that is fused; without them those of the
    match are taken, or the statistics are gathered on its data."""
    repair: Any = None
    """Data for REPAIR (`isomerge.engine.merge.repair`), which re-normalises the merged model's activations."""
    heads: str = "average"
    """Whose classifier heads are written (`isomerge.engine.merge.heads`)."""
    recipe: str | None = None
    """The YAML that is kept with the output."""
