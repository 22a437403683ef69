"""The loss on the plane through three models (Garipov et al. 2018, *Loss surfaces, mode connectivity*)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, sqrt
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from isomerge.errors import IsomergeError
from isomerge.evidence.line import figures_of, paired
from isomerge.evidence.pictures import write_picture
from isomerge.records import Json

MARGIN = 0.2
"""How far the picture reaches beyond the three models, in parts of their extent."""


@dataclass(frozen=True)
class Plane:
    """Loss and accuracy on a grid of the affine plane through A, B, C.

    Coordinates are orthonormal in parameter space: A is (0, 0), B lies on the positive first axis, C above it, and
    distances are Frobenius distances of all weights.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    """``losses[row][column]`` at ``(xs[column], ys[row])``."""
    accuracies: tuple[tuple[float, ...], ...]
    corners: tuple[tuple[float, float], ...]
    """Where A, B and C are."""
    corner_losses: tuple[float, ...]
    corner_accuracies: tuple[float, ...]
    centroid: tuple[float, float]
    """Loss and accuracy of the average of the three."""

    @property
    def ends(self) -> list[tuple[float, float]]:
        """Loss and accuracy of A, B and C."""
        return list(zip(self.corner_losses, self.corner_accuracies, strict=True))

    @property
    def lowest(self) -> tuple[float, float, float]:
        """The lowest loss on the grid, and where: (loss, x, y)."""
        return min(
            (loss, x, y)
            for y, row in zip(self.ys, self.losses, strict=True)
            for x, loss in zip(self.xs, row, strict=True)
        )

    @property
    def highest_inside(self) -> tuple[float, float, float]:
        """The highest loss on grid points in the triangle of the three models, corners and centroid included."""
        (ax, ay), (bx, by), (cx, cy) = self.corners
        points = [
            (loss, x, y)
            for y, row in zip(self.ys, self.losses, strict=True)
            for x, loss in zip(self.xs, row, strict=True)
            if min(weights_at(self.corners, x, y)) >= 0
        ]
        points += [(loss, x, y) for loss, (x, y) in zip(self.corner_losses, self.corners, strict=True)]
        return max([*points, (self.centroid[0], (ax + bx + cx) / 3, (ay + by + cy) / 3)])

    def document(self) -> Json:
        """Corners, centroid, lowest loss, highest loss in the triangle, and the grid."""
        corners = zip(self.corners, self.ends, strict=True)
        return {
            "corners": [{"x": x, "y": y, **figures_of(*end).document()} for (x, y), end in corners],
            "centroid": figures_of(*self.centroid).document(),
            "lowest": dict(zip(("loss", "x", "y"), self.lowest, strict=True)),
            "highest_inside": dict(zip(("loss", "x", "y"), self.highest_inside, strict=True)),
            "xs": list(self.xs),
            "ys": list(self.ys),
            "losses": [list(row) for row in self.losses],
            "accuracies": None if isnan(self.centroid[1]) else [list(row) for row in self.accuracies],
        }


def plane_corners(a: nn.Module, b: nn.Module, c: nn.Module) -> tuple[tuple[float, float], ...]:
    """The orthonormal coordinates of three modules in the plane through them.

    Raises:
        IsomergeError: they lie on one line, so that no plane is theirs.
    """
    bb = bc = cc = 0.0
    with torch.no_grad():
        for x, y, z in paired(a, b, c):
            to_b, to_c = (y - x).double().flatten(), (z - x).double().flatten()
            bb += float(to_b @ to_b)
            bc += float(to_b @ to_c)
            cc += float(to_c @ to_c)
    height = cc - bc**2 / bb if bb > 0 else 0.0
    if height <= 1e-10 * cc:
        raise IsomergeError("the three models lie on one line, so there is no plane through them: give two of them")
    return (0.0, 0.0), (sqrt(bb), 0.0), (bc / sqrt(bb), sqrt(height))


def weights_at(corners: Sequence[tuple[float, float]], x: float, y: float) -> tuple[float, float, float]:
    """The weights of A, B and C (they sum to 1) at a point of their plane."""
    (_, _), (bx, _), (cx, cy) = corners
    third = y / cy
    second = (x - third * cx) / bx
    return 1 - second - third, second, third


def loss_plane(
    a: nn.Module,
    b: nn.Module,
    c: nn.Module,
    evaluate: Callable[[nn.Module], tuple[float, float]],
    grid: int = 21,
    observer: Callable[[int], None] = lambda done: None,
) -> Plane:
    """Evaluate models on the plane through three modules; a fourth is in memory.

    Args:
        a, b, c: modules of one architecture; not changed. Buffers that are not stored, or are no floating-point
            numbers, are those of ``a``.
        evaluate: returns (loss in nats, accuracy in 0..1) of a module.
        grid: points along each side; ``grid**2 + 4`` evaluations are made.
        observer: is told how many are done.

    Raises:
        IsomergeError: the three lie on one line.
    """
    corners = plane_corners(a, b, c)
    middle = copy.deepcopy(a)
    done = 0

    def at(weights: tuple[float, float, float]) -> tuple[float, float]:
        nonlocal done
        with torch.no_grad():
            for p, x, y, z in paired(middle, a, b, c):
                p.copy_(weights[0] * x + weights[1] * y + weights[2] * z)
            measure = evaluate(middle)
        observer(done := done + 1)
        return measure

    own = [at(w) for w in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))]
    centroid = at((1 / 3, 1 / 3, 1 / 3))
    xs, ys = (_span([corner[k] for corner in corners], grid) for k in (0, 1))
    rows = [[at(weights_at(corners, x, y)) for x in xs] for y in ys]
    losses, accuracies = (tuple(tuple(measure[k] for measure in row) for row in rows) for k in (0, 1))
    return Plane(
        xs, ys, losses, accuracies, corners, tuple(f[0] for f in own), tuple(f[1] for f in own), centroid
    )  # fmt: skip


def _span(values: list[float], count: int) -> tuple[float, ...]:
    low, high = min(values), max(values)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    return tuple(low + (high - low) * k / (count - 1) for k in range(count))


def draw_planes(planes: Sequence[tuple[str, Plane]], names: Sequence[str], path: Path, loss: str) -> None:
    """A PNG with the contours of the loss of every plane, in one scale, and the three models on it.

    Args:
        planes: a name and a plane each.
        names: of the three models.
        path: the file; its ending tells the format.
        loss: what the loss is.

    Raises:
        IsomergeError: the file cannot be written.
    """
    every = [v for _, plane in planes for row in plane.losses for v in row]
    low, high = max(min(every), 1e-6), max(*every, 2e-6)
    levels = numpy.geomspace(low, max(high, low * 1.001), 25)

    def draw(figure: Any) -> None:
        from matplotlib import colors

        figure.set_layout_engine("compressed")  # made for axes of a fixed aspect, whose titles it keeps inside
        grid = figure.subplots(1, len(planes), squeeze=False)
        filled: Any = None
        for axes, (name, plane) in zip(grid[0], planes, strict=True):
            values = numpy.clip(numpy.array(plane.losses), low, None)
            scale = colors.LogNorm(levels[0], levels[-1])
            filled = axes.contourf(
                plane.xs, plane.ys, values, levels=levels, cmap="viridis_r", norm=scale, extend="both"
            )
            axes.contour(plane.xs, plane.ys, values, levels=levels[::3], colors="white", linewidths=0.4)
            for (x, y), label in zip(plane.corners, names, strict=True):
                axes.plot(x, y, "o", color="black", markersize=4)
                axes.annotate(label, (x, y), textcoords="offset points", xytext=(5, 5), fontsize=9)
            axes.set_title(name, fontsize=10)
            extent = (plane.xs[-1] - plane.xs[0]) / (plane.ys[-1] - plane.ys[0])
            axes.set_aspect("equal" if 0.2 < extent < 5 else "auto")
            axes.set_xlabel("Frobenius distance")
        figure.colorbar(filled, ax=list(grid[0]), label=loss, format="%.3g")

    write_picture(draw, (5.2 * len(planes), 4.4), path)
