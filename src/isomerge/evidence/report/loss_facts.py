"""Losses between models, as plain values: the JSON of `isomerge barrier`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from pathlib import Path
from typing import Any

from isomerge.checkpoint.document import read_object
from isomerge.errors import IsomergeError

MOVED = "after alignment"
"""The line to the second model as the run has moved it."""
STORED = "as stored"
EVEN, LUCK = 0.01, 0.05
"""A model guesses whose loss is within this part of an even guess's, or higher, and whose accuracy is no more than
so much above it: one that is sure of what is wrong has a high loss, and may still be right more often."""


@dataclass(frozen=True)
class Point:
    """The loss and accuracy (0..1) of one model; accuracy None where there was none."""

    loss: float
    accuracy: float | None = None


@dataclass(frozen=True)
class LossLine:
    """Loss and accuracy on the straight line between two models."""

    name: str
    at: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...] | None
    """None where nothing is right or wrong: of values."""
    barrier: float
    """In the unit of the loss, above the straight line between the ends (Entezari et al. 2022)."""
    drop: float
    """The same of the error rate, in 0..1."""

    @property
    def ends(self) -> tuple[Point, Point]:
        """The two models."""
        return self._point(0), self._point(-1)

    @property
    def midpoint(self) -> Point:
        """Their average: the point in the middle of the list."""
        return self._point(len(self.at) // 2)

    def _point(self, k: int) -> Point:
        return Point(self.losses[k], None if self.accuracies is None else self.accuracies[k])


@dataclass(frozen=True)
class LossPlane:
    """The loss on a grid of the plane through three models."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    """``losses[row][column]`` at ``(xs[column], ys[row])``."""
    corners: tuple[tuple[float, float, Point], ...]
    centroid: Point


@dataclass(frozen=True)
class Losses:
    """What was measured on one set of examples."""

    models: tuple[str, ...]
    examples: int
    unit: str
    """``nats`` per example, ``nats per token`` or ``per label``, or of values ``squared units``."""
    ensemble: Point | None
    lines: tuple[LossLine, ...] = ()
    planes: tuple[LossPlane, ...] = ()
    merged: Point | None = None
    """The output itself."""
    chance: float | None = None
    """The loss of a guess that takes all outcomes for equally likely; None where none is right or wrong, and in
    reports of older versions."""

    @property
    def guesses(self) -> bool:
        """Whether no model at an end of a line does better than such a guess."""
        ends = [end for line in self.lines for end in line.ends]
        return self.chance is not None and all(
            end.loss >= self.chance * (1 - EVEN) and (end.accuracy or 0.0) <= exp(-self.chance) + LUCK
            for end in ends
        )

    def line_of(self, spaces: str, *, aligned: bool) -> LossLine | None:
        """The line that a run stands for: moved as it moved, aligned in its spaces, aligned in others, or as
        stored."""
        by_name = {line.name: line for line in self.lines}
        wanted = [MOVED, f"aligned, {spaces}"] if aligned else [STORED]
        exact = next((by_name[name] for name in wanted if name in by_name), None)
        others = [line for line in self.lines if (line.name != STORED) == aligned]
        return exact or (others[-1] if others else self.lines[-1] if self.lines else None)

    @property
    def stored(self) -> LossLine | None:
        """The line between the models as they are."""
        return next((line for line in self.lines if line.name == STORED), None)


def read_losses(path: str | Path) -> Losses:
    """Read the file that ``isomerge barrier --json`` wrote.

    Raises:
        IsomergeError: no such file, or other content.
    """
    file = Path(os.path.expanduser(path))
    try:
        document = read_object(file, remedy="write it by isomerge barrier --json")
    except IsomergeError as error:
        raise IsomergeError(f"--barrier {path} cannot be read: {error}") from None
    return losses_of(document, file=f"--barrier {path}")


def losses_of(report: Any, *, file: str = "the report") -> Losses:
    """The losses in a report of `isomerge.barrier`.

    Raises:
        IsomergeError: it is the report of another command, or damaged.
    """
    if not isinstance(report, Mapping) or report.get("command") != "barrier":
        raise IsomergeError(f"{file} is no report of isomerge barrier: write one by isomerge barrier --json")
    try:
        together = report.get("ensemble")
        return Losses(
            _models(report),
            int(report["data"]["examples"]),
            str(report.get("unit", "nats")),
            None if together is None else point_of(together),
            tuple(_line(line) for line in report.get("lines") or ()),
            tuple(_plane(plane) for plane in report.get("planes") or ()),
            None if report.get("merged") is None else point_of(report["merged"]),
            None if report.get("chance") is None else _finite([report["chance"]])[0],
        )
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise IsomergeError(
            f"{file} is damaged ({type(error).__name__}: {error}): run isomerge barrier again"
        ) from None


def _models(report: Mapping[str, Any]) -> tuple[str, ...]:
    names = report["models"]
    wanted = 3 if report.get("planes") else 2
    if not isinstance(names, list) or len(names) != wanted:
        raise ValueError("a line is between two models, a plane between three")
    return tuple(map(str, names))


def point_of(entry: Mapping[str, Any]) -> Point:
    """A loss and an accuracy."""
    accuracy = entry.get("accuracy")
    return Point(_finite([entry["loss"]])[0], None if accuracy is None else _finite([accuracy])[0])


def _line(entry: Mapping[str, Any]) -> LossLine:
    at, losses = (_finite(entry[key]) for key in ("points", "losses"))
    accuracies = None if entry["accuracies"] is None else _finite(entry["accuracies"])
    if not (2 <= len(at) == len(losses) == len(losses if accuracies is None else accuracies)):
        raise ValueError("a line needs as many losses and accuracies as points, and at least two")
    drop = float((entry.get("accuracy_drop") or {}).get("entezari", 0.0))
    return LossLine(str(entry["name"]), at, losses, accuracies, float(entry["barrier"]["entezari"]), drop)


def _plane(entry: Mapping[str, Any]) -> LossPlane:
    xs, ys, rows = _finite(entry["xs"]), _finite(entry["ys"]), tuple(map(_finite, entry["losses"]))
    if len(rows) != len(ys) or any(len(row) != len(xs) for row in rows):
        raise ValueError("a plane needs a loss for every point of its grid")
    corners = tuple((float(c["x"]), float(c["y"]), point_of(c)) for c in entry["corners"])
    return LossPlane(str(entry["name"]), xs, ys, rows, corners, point_of(entry["centroid"]))


def _finite(values: Sequence[Any]) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(map(isfinite, numbers)):
        raise ValueError("a figure is not finite")
    return numbers
