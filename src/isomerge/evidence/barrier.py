"""What lies between models, on data: the line between two, the plane through three, and the ends' ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

import torch
from torch import nn

from isomerge.evidence.line import Line
from isomerge.evidence.plane import Plane
from isomerge.observe.data.examples import Examples
from isomerge.observe.losses import Figures, Measure, Tally, evaluate, logits_of
from isomerge.observe.predictions import prediction_of
from isomerge.records import Change, Json, Record, as_json


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


class LineReport(Record):
    """The figures of one line."""

    name: str
    line: Line
    distances: Sequence[Change] | None = None
    """Of the models that were aligned for it, to the first."""

    def document(self) -> Json:
        """``barrier`` and ``accuracy_drop`` by definition, midpoint, worst point, all points; what is of accuracy
        is None where there is none."""
        line, (at, highest) = self.line, self.line.worst
        exact = not isnan(line.midpoint[1])
        return {
            "name": self.name,
            "barrier": line.barriers,
            "accuracy_drop": line.accuracy_drops if exact else None,
            "midpoint": figures_of(*line.midpoint).document(),
            "highest": {"loss": highest, "at": at},
            "ends": as_json([figures_of(*end) for end in line.ends]),
            "points": list(line.points),
            "losses": list(line.losses),
            "accuracies": list(line.accuracies) if exact else None,
            **({} if self.distances is None else {"distances": as_json(self.distances)}),
        }


class PlaneReport(Record):
    """The figures of one plane."""

    name: str
    plane: Plane
    distances: Sequence[Change] | None = None
    """As of `LineReport`."""

    def document(self) -> Json:
        """Corners, centroid, lowest loss, highest loss in the triangle, and the grid."""
        plane = self.plane
        corners = zip(plane.corners, plane.ends, strict=True)
        return {
            "name": self.name,
            "corners": [{"x": x, "y": y, **figures_of(*end).document()} for (x, y), end in corners],
            "centroid": figures_of(*plane.centroid).document(),
            "lowest": dict(zip(("loss", "x", "y"), plane.lowest, strict=True)),
            "highest_inside": dict(zip(("loss", "x", "y"), plane.highest_inside, strict=True)),
            "xs": list(plane.xs),
            "ys": list(plane.ys),
            "losses": [list(row) for row in plane.losses],
            "accuracies": None if isnan(plane.centroid[1]) else [list(row) for row in plane.accuracies],
            **({} if self.distances is None else {"distances": as_json(self.distances)}),
        }


def figures_of(loss: float, accuracy: float) -> Figures:
    """Of an accuracy that is NaN where there is none."""
    return Figures(loss, None if isnan(accuracy) else accuracy)
