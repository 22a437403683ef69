"""What lies between models, on data: the line between two, the plane through three, and the ends' ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import torch
from torch import nn

from isomerge.evidence.line import Line
from isomerge.evidence.plane import Plane
from isomerge.observe.data.examples import Examples
from isomerge.observe.losses import (
    Measure,
    Tally,
    evaluate,
    logits_of,
)
from isomerge.observe.predictions import prediction_of


def evaluator(examples: Examples, batch_size: int = 32) -> Callable[[nn.Module], tuple[float, float]]:
    """A function from a module to its loss and accuracy (0..1; NaN where nothing is right or wrong) on labelled
    examples."""

    def run(module: nn.Module) -> tuple[float, float]:
        measure = evaluate(module, examples, batch_size)
        return measure.loss, float("nan") if measure.accuracy is None else measure.accuracy

    return run


def ensemble(modules: Sequence[nn.Module], examples: Examples, batch_size: int = 32) -> Measure:
    """The mean of several modules' predictions (probabilities, or values): what a merge could reach that kept what
    each of them knows.

    Costs a run of every module, where a merge costs one.

    Raises:
        IsomergeError: examples without labels, or modules that cannot read them.
    """

    tally = Tally(prediction_of(modules[0], examples.tensors.get("labels")))
    with torch.no_grad():
        for batch in examples.batches(batch_size):
            logits = [logits_of(module, batch) for module in modules]
            tally.add(tally.kind.mean([x.to(logits[0].device) for x in logits]), batch)
    return tally.measure(len(examples))


def line_report(name: str, line: Line) -> dict[str, Any]:
    """The figures of one line: ``barrier`` and ``accuracy_drop`` by definition, midpoint, worst point, all points.

    What tells of accuracy is None where there is none.
    """
    at, highest = line.worst
    loss, accuracy = line.midpoint
    return {
        "name": name,
        "barrier": line.barriers,
        "accuracy_drop": None if isnan(accuracy) else line.accuracy_drops,
        "midpoint": {"loss": loss, "accuracy": _told(accuracy)},
        "highest": {"loss": highest, "at": at},
        "ends": [
            {"loss": line.losses[k], "accuracy": _told(line.accuracies[k])} for k in (0, -1)
        ],
        "points": list(line.points),
        "losses": list(line.losses),
        "accuracies": None if isnan(accuracy) else list(line.accuracies),
    }  # fmt: skip


def plane_report(name: str, plane: Plane) -> dict[str, Any]:
    """The figures of one plane: corners, centroid, lowest loss, highest loss in the triangle, and the grid.

    What tells of accuracy is None where there is none.
    """
    lowest, highest = plane.lowest, plane.highest_inside
    return {
        "name": name,
        "corners": [
            {"x": x, "y": y, "loss": loss, "accuracy": _told(accuracy)}
            for (x, y), loss, accuracy in zip(
                plane.corners, plane.corner_losses, plane.corner_accuracies, strict=True
            )
        ],
        "centroid": {"loss": plane.centroid[0], "accuracy": _told(plane.centroid[1])},
        "lowest": dict(zip(("loss", "x", "y"), lowest, strict=True)),
        "highest_inside": dict(zip(("loss", "x", "y"), highest, strict=True)),
        "xs": list(plane.xs),
        "ys": list(plane.ys),
        "losses": [list(row) for row in plane.losses],
        "accuracies": None if isnan(plane.centroid[1]) else [list(row) for row in plane.accuracies],
    }


def _told(accuracy: float) -> float | None:
    return None if isnan(accuracy) else accuracy
