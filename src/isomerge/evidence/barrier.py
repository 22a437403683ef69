"""What lies between models, on data: the line between two, the plane through three, and the ends' ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from isomerge.evidence.losses import (
    Measure,
    evaluate,
    logits_of,
    loss_of_logits,
    mean_log_probability,
    measure,
    targets_of,
)

if TYPE_CHECKING:
    from torch import nn

    from isomerge.data.examples import Examples
    from isomerge.evidence.line import Line
    from isomerge.evidence.plane import Plane


def evaluator(examples: Examples, batch_size: int = 32) -> Callable[[nn.Module], tuple[float, float]]:
    """A function from a module to its loss (nats) and accuracy (0..1) on labelled examples."""

    def run(module: nn.Module) -> tuple[float, float]:
        found = evaluate(module, examples, batch_size)
        return found.loss, found.accuracy or 0.0

    return run


def ensemble(modules: Sequence[nn.Module], examples: Examples, batch_size: int = 32) -> Measure:
    """The mean of several modules' probabilities: what a merge could reach that kept what each of them knows.

    Costs a run of every module, where a merge costs one.

    Raises:
        IsomergeError: examples without labels, or modules that cannot read them.
    """
    import torch

    total, count, correct, tokens = 0.0, 0, 0, False
    with torch.no_grad():
        for batch in examples.batches(batch_size):
            logits = [logits_of(module, batch) for module in modules]
            mean = mean_log_probability([x.to(logits[0].device) for x in logits])
            loss, seen, right = loss_of_logits(mean, targets_of(batch, mean))
            total, count, correct, tokens = total + float(loss), count + seen, correct + right, mean.ndim == 3
    return measure(total, count, correct, len(examples), tokens=tokens)


def line_report(name: str, line: Line) -> dict[str, Any]:
    """The figures of one line: ``barrier`` (nats) and ``accuracy_drop`` by definition, midpoint, worst point, all points."""
    at, highest = line.worst
    loss, accuracy = line.midpoint
    return {
        "name": name,
        "barrier": line.barriers,
        "accuracy_drop": line.accuracy_drops,
        "midpoint": {"loss": loss, "accuracy": accuracy},
        "highest": {"loss": highest, "at": at},
        "ends": [
            {"loss": line.losses[k], "accuracy": line.accuracies[k]} for k in (0, -1)
        ],
        "points": list(line.points),
        "losses": list(line.losses),
        "accuracies": list(line.accuracies),
    }  # fmt: skip


def plane_report(name: str, plane: Plane) -> dict[str, Any]:
    """The figures of one plane: corners, centroid, lowest loss, highest loss in the triangle, and the grid."""
    lowest, highest = plane.lowest, plane.highest_inside
    return {
        "name": name,
        "corners": [
            {"x": x, "y": y, "loss": loss, "accuracy": accuracy}
            for (x, y), loss, accuracy in zip(
                plane.corners, plane.corner_losses, plane.corner_accuracies, strict=True
            )
        ],
        "centroid": {"loss": plane.centroid[0], "accuracy": plane.centroid[1]},
        "lowest": dict(zip(("loss", "x", "y"), lowest, strict=True)),
        "highest_inside": dict(zip(("loss", "x", "y"), highest, strict=True)),
        "xs": list(plane.xs),
        "ys": list(plane.ys),
        "losses": [list(row) for row in plane.losses],
        "accuracies": [list(row) for row in plane.accuracies],
    }
