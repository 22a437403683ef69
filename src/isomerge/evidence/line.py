"""The loss along the line between two models, and its barrier."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.evidence.pictures import write_picture
from isomerge.observe.live.parameter_places import weights_of
from isomerge.observe.losses import Figures
from isomerge.records import Json

STYLES: Sequence[Mapping[str, str]] = [
    {"color": "#9a9a9a", "linestyle": "--"},
    {"color": "#d1772e", "linestyle": "-."},
    {"color": "#1f6fb4"},
    {"color": "#2a8c4a"},
    {"color": "#8a4fa3", "linestyle": ":"},
    {"color": "#b3423a"},
]


@dataclass(frozen=True)
class Line:
    """Loss and accuracy (NaN where nothing is right or wrong) at ``(1 - t) A + t B``."""

    points: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]

    @property
    def barrier(self) -> float:
        """``max_t L(t) - [(1 - t) L(0) + t L(1)]`` in nats (Entezari et al. 2022; Theus et al. 2025)."""
        return self.barriers["entezari"]

    @property
    def barriers(self) -> dict[str, float]:
        """The barrier of the loss in nats by the three `definitions`."""
        return definitions(self.points, self.losses)

    @property
    def accuracy_drops(self) -> dict[str, float]:
        """The same of the error rate (0..1): how far accuracy falls."""
        return definitions(self.points, [1 - accuracy for accuracy in self.accuracies])

    @property
    def midpoint(self) -> tuple[float, float]:
        """Loss and accuracy of the average: the middle one of an odd number of points."""
        middle = len(self.points) // 2
        return self.losses[middle], self.accuracies[middle]

    @property
    def ends(self) -> list[tuple[float, float]]:
        """Loss and accuracy of both models."""
        return [(self.losses[k], self.accuracies[k]) for k in (0, -1)]

    @property
    def worst(self) -> tuple[float, float]:
        """Where the loss is highest, and that loss."""
        loss, at = max(zip(self.losses, self.points, strict=True))
        return at, loss

    def document(self) -> Json:
        """``barrier`` and ``accuracy_drop`` by definition, midpoint, worst point, all points; what is of accuracy
        is None where there is none."""
        at, highest = self.worst
        exact = not isnan(self.midpoint[1])
        return {
            "barrier": self.barriers,
            "accuracy_drop": self.accuracy_drops if exact else None,
            "midpoint": figures_of(*self.midpoint).document(),
            "highest": {"loss": highest, "at": at},
            "ends": [figures_of(*end).document() for end in self.ends],
            "points": list(self.points),
            "losses": list(self.losses),
            "accuracies": list(self.accuracies) if exact else None,
        }


def figures_of(loss: float, accuracy: float) -> Figures:
    """Of an accuracy that is NaN where there is none."""
    return Figures(loss, None if isnan(accuracy) else accuracy)


def definitions(points: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """The barrier in the three ways in which the literature defines it.

    Args:
        points: from 0 to 1.
        values: what rises at a barrier, such as the loss, at every point.

    Returns:
        - ``entezari``: max_t v(t) - [(1 - t) v(0) + t v(1)], above the straight line between the ends (Entezari et
          al. 2022); never negative.
        - ``verma``: max_t v(t) - (v(0) + v(1)) / 2, above the mean of the ends (Verma and Elbayad 2024); an end
          that is worse than the other counts.
        - ``range``: max_t v(t) - min_t v(t), of all points (Zhang et al. 2025).
    """
    first, last = values[0], values[-1]
    above = max(v - ((1 - t) * first + t * last) for t, v in zip(points, values, strict=True))
    return {"entezari": above, "verma": max(values) - (first + last) / 2, "range": max(values) - min(values)}


def paired(*modules: nn.Module) -> Iterator[tuple[Tensor, ...]]:
    """The weights of modules of one architecture side by side, as
    `isomerge.observe.live.parameter_places.weights_of` gives them.

    Raises:
        IsomergeError: their weights have other names or shapes.
    """
    sets = [weights_of(module) for module in modules]
    for name in sorted(set().union(*sets)):
        if not all(name in weights and weights[name].shape == sets[0][name].shape for weights in sets):
            raise IsomergeError(
                f"tensor {name} is not in all models alike: only models of one architecture have a line between "
                f"them"
            )
    for name in sets[0]:
        yield tuple(weights[name] for weights in sets)


def loss_line(
    a: nn.Module,
    b: nn.Module,
    evaluate: Callable[[nn.Module], tuple[float, float]],
    points: int = 21,
    observer: Callable[[int], None] = lambda done: None,
) -> Line:
    """Evaluate models on the line from ``a`` to ``b``; a third module is in memory.

    Args:
        a, b: modules of one architecture; not changed. Buffers that are not stored, or are no floating-point
            numbers, are those of ``a``.
        evaluate: returns (loss in nats, accuracy in 0..1) of a module.
        points: how many, both ends included.
        observer: is told how many are done.
    """
    middle = copy.deepcopy(a)
    measured = []
    at = tuple(k / (points - 1) for k in range(points))
    for t in at:
        with torch.no_grad():
            for p, x, y in paired(middle, a, b):
                p.copy_(torch.lerp(x, y, t))  # exact at both ends
            measured.append(evaluate(middle))
        observer(len(measured))
    return Line(at, tuple(loss for loss, _ in measured), tuple(acc for _, acc in measured))


def draw_lines(
    lines: Sequence[tuple[str, Line]],
    ends: tuple[str, str],
    path: Path,
    title: str,
    *,
    loss: str = "test cross-entropy (nats)",
    ensemble: tuple[float, float] | None = None,
) -> None:
    """A PNG of losses (left) and accuracies (right, where there are some) along several lines.

    Args:
        lines: a name and a line each.
        ends: the names of the two models.
        path: the file; its ending tells the format.
        title: above both.
        loss: what the loss is.
        ensemble: loss and accuracy of the ends' ensemble, drawn as a level.

    Raises:
        IsomergeError: the file cannot be written.
    """
    judged = all(a == a for _, line in lines for a in line.accuracies)  # values are neither right nor wrong

    def draw(figure: Any) -> None:
        both = figure.subplots(1, 1 + judged, squeeze=False)
        left, right = both[0, 0], both[0, 1] if judged else None
        for (name, line), style in zip(lines, cycle(STYLES), strict=False):
            left.plot(line.points, line.losses, label=f"{name} (barrier {line.barrier:.2f})", linewidth=2, **style)
            if right is not None:
                right.plot(line.points, [100 * a for a in line.accuracies], linewidth=2, **style)
        if ensemble is not None:
            level = {"color": "black", "linewidth": 0.8, "linestyle": (0, (1, 3))}
            left.axhline(ensemble[0], label="ensemble of the ends", **level)
            if right is not None:
                right.axhline(100 * ensemble[1], **level)
        left.set_ylabel(loss)
        figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=8)  # it covers no curve there
        left.set_ylim(0, max(max(line.losses) for _, line in lines) * 1.05 or 1)
        if right is not None:
            right.set_ylabel("test accuracy (%)" if loss.startswith("test") else "accuracy (%)")
            right.set_ylim(0, 101)
        for axes in both[0]:
            axes.set_xlabel("position on the line between the models")
            axes.set_xticks([0, 0.5, 1], [ends[0], "midpoint", ends[1]])
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", alpha=0.3)
        figure.suptitle(title, fontsize=11)

    write_picture(draw, (10 if judged else 5.4, 4.2), path)
