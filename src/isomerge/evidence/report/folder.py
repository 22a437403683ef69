"""Reading the folder that a merge or an alignment wrote: its report, its recipe, its size, and what came before
it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.weights import find_weights, read_headers
from isomerge.checkpoint.yaml_text import documents_of
from isomerge.errors import IsomergeError
from isomerge.evidence.card import RECIPE, REPORT
from isomerge.evidence.report.facts import Facts, facts_of
from isomerge.evidence.report.spaces import Wording, wording_of
from isomerge.records import Json


@dataclass(frozen=True)
class Size:
    """What the weights of an output take."""

    parameters: int
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """An output: its facts, and what stands beside them in the folder."""

    facts: Facts
    folder: Path | None = None
    size: Size | None = None
    recipe: str = ""
    wording: Wording = field(default_factory=Wording)
    earlier: Facts | None = None
    """Of the alignment that made the second model, where the run itself aligned nothing: that model was aligned
    before."""
    changed: tuple[str, ...] = ()
    """What of the folder is not what the run wrote, in sentences."""

    @cached_property
    def content(self) -> Json:
        """What the recipe says; empty where there is none that can be read, as nobody vouches for it."""
        try:
            documents = documents_of(self.recipe, RECIPE)
        except IsomergeError:
            return {}
        return documents[0] if len(documents) == 1 and isinstance(documents[0], dict) else {}

    @property
    def matched(self) -> Facts:
        """The facts on distance: of the run itself, or of the alignment before it."""
        return self.earlier or self.facts


def read_output(out: str | Path, *, spec: str | Path | None = None) -> Written:
    """Read an output of `isomerge.merge` or `align`.

    Args:
        out: the folder.
        spec: the spec file of an architecture that isomerge does not know; without it, spaces go by their short
            names.

    Raises:
        IsomergeError: no such folder, nothing that isomerge wrote, or a damaged report.
    """
    folder = Path(os.path.expanduser(out))
    if not folder.is_dir():
        raise IsomergeError(f"{out}: no such folder; give one that isomerge merge or isomerge align wrote")
    facts = facts_of(_report(folder), file=str(folder / REPORT))
    recipe = folder / RECIPE
    return Written(
        facts,
        folder,
        weights_size(folder),
        recipe.read_text(encoding="utf-8", errors="replace") if recipe.is_file() else "",
        wording_of(folder, spec),
        earlier_alignment(facts),
    )


def earlier_alignment(facts: Facts) -> Facts | None:
    """Of the run that aligned the second of two models onto the first, where the merge itself aligned nothing.

    What stands in that model's folder is read, if it is still there; a folder that isomerge did not write says
    nothing.
    """
    if facts.command != "merge" or facts.aligned or len(facts.models) != 2:
        return None
    try:
        earlier = facts_of(_report(Path(os.path.expanduser(facts.paths[1]))))
    except IsomergeError:
        return None
    same = (
        earlier.command == "align" and earlier.aligned and _resolved(earlier.paths[0]) == _resolved(facts.paths[0])
    )
    return earlier if same else None


def _resolved(ref: str) -> str:
    return os.path.realpath(os.path.expanduser(ref))


def _report(folder: Path) -> Mapping[str, Any]:
    path = folder / REPORT
    if not path.exists():
        raise IsomergeError(f"{folder} has no {REPORT}: give a folder that isomerge merge or isomerge align wrote")
    return read_object(path, remedy="run the command that wrote it again")


def weights_size(folder: Path) -> Size | None:
    """Parameters, bytes and dtypes of a folder's weights, from their headers alone; None where there are none to
    read."""
    try:
        weights = find_weights(folder, allow_pickle=False)
        tensors = read_headers(weights).values()
        nbytes = sum(file.stat().st_size for file in weights.files)
    except (OSError, IsomergeError):
        return None
    return Size(sum(prod(t.shape) for t in tensors), nbytes, tuple(sorted({t.dtype for t in tensors})))
