"""How a barrier is measured: points, spaces, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from isomerge.errors import IsomergeError
from isomerge.evidence.pictures import check_picture
from isomerge.files import check_file
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import make_plan
from isomerge.observe.live.accelerator import check_device
from isomerge.progress import Observer, quiet
from isomerge.solve.match_names import BY_WEIGHTS
from isomerge.solve.match_options import OURS, WEIGHTS, Matching
from isomerge.solve.standing import Standing, chosen_spaces


class Way(NamedTuple):
    """How models are aligned before what lies between them is measured."""

    name: str
    spaces: str
    matching: Matching

    @property
    def option(self) -> str:
        """As the command line says it."""
        return f"--{'spaces' if self.matching is WEIGHTS else 'match'} {self.name}"


@dataclass(frozen=True)
class BarrierOptions:
    """How a barrier is measured."""

    points: int = 25
    """Along a line, both ends included; odd, so that the midpoint is one of them."""
    grid: int = 21
    """Points along each side of a plane."""
    spaces: Sequence[str] | None = ("default",)
    """Beside the models as stored: after alignment in each of these selections; None: in what the models need, see
    `chosen`."""
    match: Sequence[str] = ()
    """Published ways to match by weights, each a line or plane more."""
    batch_size: int = 32
    device: str = "cpu"
    png: Path | None = None
    max_memory: int | None = None
    """Bytes that all of it may take, as `isomerge.run.forward_cost.barrier_cost` counts them."""
    observer: Observer = quiet

    def check(self, models: Sequence[Model], aligned: Sequence[Model]) -> None:
        """Refuse what cannot be done before anything is run.

        Raises:
            IsomergeError: naming the option.
        """
        if self.points < 3 or self.points % 2 == 0:
            raise IsomergeError(
                f"--points {self.points}: give an odd number of at least 3, so that the midpoint is one of them"
            )
        if self.grid < 2:
            raise IsomergeError(f"--grid {self.grid}: a plane needs at least 2 points along each side")
        if len(models) == 2 and self.grid != BarrierOptions.grid:
            raise IsomergeError(
                f"--grid {self.grid} is of a plane: name a third model, or give --points for the line"
            )
        if len(models) > 2 and self.points != BarrierOptions.points:
            raise IsomergeError(f"--points {self.points} is of a line: leave the third model out, or give --grid")
        if self.batch_size < 1:
            raise IsomergeError(f"--batch-size {self.batch_size}: at least one example is needed")
        if self.png is not None:
            check_picture(self.png)
            check_file(self.png, f"--png {self.png}", overwrite=True)
        if aligned and len(models) > 2:
            raise IsomergeError("--aligned adds lines, and three models have a plane: leave one of them out")
        for name in self.match:
            if name not in (OURS, *BY_WEIGHTS):
                raise IsomergeError(
                    f"--match {name}: choose from {', '.join((OURS, *BY_WEIGHTS))}; what was matched by data is "
                    "measured with --aligned, on other data"
                )
        check_device(self.device)
        check_compatible(models[0], [*models[1:], *aligned])
        for way in self.ways:
            for model in models[1:]:
                make_plan(model, [models[0]], way.spaces)

    @property
    def kinds(self) -> list[str]:
        """The selections of spaces to align in, each once."""
        return [chosen for chosen in dict.fromkeys(self.spaces or ()) if chosen != "none"]

    @property
    def ways(self) -> list[Way]:
        """How models are aligned, beside as they are stored: by our match in every selection of spaces, and by the
        published ways."""
        ours = [Way(chosen, chosen, WEIGHTS) for chosen in self.kinds]
        published = [Matching(match=name) for name in dict.fromkeys(self.match) if name != OURS]
        return [*ours, *(Way(m.match, m.spaces(None), m) for m in published)]

    def chosen(self, models: Sequence[Model], models_stand: Sequence[Standing]) -> tuple[BarrierOptions, list[str]]:
        """The same with spaces that the models need where none were asked for, and notes on them: models that are
        aligned already have no other line than that of the models as stored.

        Args:
            models: the anchor first.
            models_stand: how the others stand to it.
        """
        if self.spaces is not None:
            streams = any(make_plan(models[1], [models[0]], kind).selection.streams for kind in self.kinds)
            is_warned = self.kinds and not streams
            notes = chosen_spaces(self.kinds[0], models_stand, models[1], [models[0]])[1] if is_warned else []
            return self, notes
        if all(standing.settled for standing in models_stand):
            return replace(self, spaces=("none",)), []
        spaces, notes = chosen_spaces(None, models_stand, models[1], [models[0]])
        return replace(self, spaces=(spaces,)), notes
