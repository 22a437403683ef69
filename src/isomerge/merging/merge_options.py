"""What a merge does beside fusing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isomerge.models.recognised import Model
from isomerge.solve.match_options import WEIGHTS, Matching
from isomerge.solve.standing import Kinship


@dataclass(frozen=True)
class MergeOptions:
    """What a merge does beside fusing: how it aligns, and what is done to the result."""

    align: bool | str = True
    """Whether models are matched; ``auto``: those that are not aligned already."""
    spaces: str | None = "default"
    """What may move; None: what the models need (`isomerge.solve.standing`)."""
    layers: str | None = None
    matching: Matching = WEIGHTS
    anchor: str = "first"
    """With ``none`` all models are matched onto their common mean (`isomerge.solve.many.mean_solver`), which is
    written in the coordinates of one of them, in any order the same (`isomerge.solve.standing.own_order`)."""
    onto: int = 0
    """The number of the model that the others are aligned onto."""
    source_bases: Sequence[Model | None] = ()
    """What the models that are fused were tuned from, where that is not the base (`TransplantSolver`)."""
    stats: Sequence[str] = ()
    """Files of `isomerge stats` for methods that ask for statistics, one per model that is fused; without them
    those of the match are taken, or the statistics are gathered on its data."""
    repair: Any = None
    """Data for REPAIR (`isomerge.fusion.forward.repair`), which re-normalises the merged model's activations."""
    heads: str = "average"
    """Whose classifier heads are written (`isomerge.merging.heads`)."""
    scan: Mapping[str, Any] | None = None
    """What was tried to select layers (`isomerge.commands.layer_selection`): for the report."""
    parents: bool = True
    """Whether the models that go in are measured beside the merge."""
    vocabulary: str = ""
    """What was decided of the models' tokens: for the report."""
    notes: Sequence[str] = ()
    """What else is to be told of them."""
    checksums: Sequence[str | None] = ()
    """Those of the models that a recipe was made with, in the order of all that are read; empty: none are known."""
    recipe: Callable[[str, bool], str] | None = None
    """The YAML that is kept with the output, from the spaces that were matched and whether they must stand in
    it."""
    kinship: Kinship | None = None
    """Asked whether models that are in other coordinates have a common base."""
