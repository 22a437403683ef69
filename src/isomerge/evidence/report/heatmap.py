"""Heat maps: distances by layer and space, and losses on a plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isomerge.evidence.report.loss_facts import LossPlane
from isomerge.evidence.report.numerals import figure, nats
from isomerge.evidence.report.svg import STEPS, Plot, drawing, mark, short, step_of, tag, text

WIDTH = 440.0
MANY = 1500
"""Cells: with more of them, figures are left to tooltips and the table."""


@dataclass(frozen=True)
class Grid:
    """Values by row and column; None where there is nothing to compare."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    tips: tuple[tuple[str, ...], ...]

    @property
    def cells(self) -> int:
        """How many there are."""
        return len(self.rows) * len(self.columns)

    def transposed(self) -> Grid:
        """Rows as columns."""
        return Grid(
            self.columns, self.rows, tuple(zip(*self.values, strict=True)), tuple(zip(*self.tips, strict=True))
        )


def heat_map(grid: Grid, top: float, words: str) -> Plot:
    """A cell for every value, with figures in it where they fit, coloured from 0 to ``top`` (and above it
    alike)."""
    left = 14 + 6.4 * max((len(name) for name in grid.rows), default=0)
    across = max(min((WIDTH - left - 2) / max(len(grid.columns), 1), 120.0), 17.0)
    down = 24.0 if len(grid.rows) <= 26 else 14.0 if len(grid.rows) <= 64 else 8.0
    tilted = any(6.4 * len(name) + 4 > across for name in grid.columns)
    head = 10 + 5.2 * max((len(name) for name in grid.columns), default=0) if tilted else 20.0
    width, height = max(left + across * len(grid.columns) + 2, 120.0), head + down * len(grid.rows) + 2
    parts = []
    for k, name in enumerate(grid.columns):
        x = left + (k + 0.5) * across
        if tilted:
            parts.append(
                text(
                    name, 0, 0, class_="tick", transform=f"translate({short(x + 3)} {short(head - 6)}) rotate(-55)"
                )
            )
        else:
            parts.append(text(name, x, head - 7, class_="tick mid"))
    every = 1 if down > 12 else 4
    for k, name in enumerate(grid.rows):
        if k % every == 0 or not name.isdigit():
            parts.append(text(name, left - 6, head + (k + 0.5) * down + 4, class_="tick end"))
    written = across >= (30 if top >= 0.5 else 36) and down >= 20 and grid.cells <= MANY and top >= 0.05
    for r, (values, tips) in enumerate(zip(grid.values, grid.tips, strict=True)):
        for c, (value, tip) in enumerate(zip(values, tips, strict=True)):
            parts.append(_cell(value, tip, (left + c * across, head + r * down, across, down), top, written))
    return drawing(parts, width, height, words)


def _cell(value: float | None, tip: str, box: tuple[float, float, float, float], top: float, written: bool) -> str:
    x, y, across, down = box
    gap = 1.0 if down > 12 else 0.5
    shape = {"x": x + gap / 2, "y": y + gap / 2, "width": across - gap, "height": down - gap}
    if value is None:
        return mark(tip, tag("rect", class_="none", **shape))
    step = f"s{step_of(value, top)}"
    shapes = [tag("rect", class_=step, **shape)]
    if written:
        digits = 2 if top >= 0.5 else 3
        words = f"{value:.{digits}f}" if value < 9.995 else "> 9.9"
        shapes.append(text(words, x + across / 2, y + down / 2 + 4, class_=f"in t{step[1:]}"))
    return mark(tip, *shapes)


def scale_bar(top: float, *, capped: bool, low: float = 0.0, unit: str = "") -> Plot:
    """The legend of the colours."""
    width, height, x0, across = 250.0, 34.0, 10.0, 230.0 / STEPS
    parts = [
        tag("rect", class_=f"s{k}", x=x0 + k * across, y=2, width=across + 0.3, height=11) for k in range(STEPS)
    ]
    for share in (0.0, 0.5, 1.0):
        value = low + share * (top - low)
        words = ("≥ " if capped and share == 1 else "") + figure(value, 2)
        parts.append(text(words, x0 + 230 * share, 29, class_="tick " + ("beg", "mid", "end")[round(2 * share)]))
    more = " and more" if capped else ""
    words = (
        f"Colour scale from {figure(low, 2)}, palest, to {figure(top, 2)}{more}, darkest on light ground. {unit}"
    )
    return drawing(parts, width, height, words)


def plane_map(plane: LossPlane, names: Sequence[str], unit: str, top: float, low: float) -> Plot:
    """The loss on a plane through three models, which are marked with their letters."""
    wide = plane.xs[-1] - plane.xs[0] or 1.0
    across = (WIDTH - 4) / len(plane.xs)
    down = across * max(min(abs(plane.ys[-1] - plane.ys[0]) / wide, 1.6), 0.3)
    height = down * len(plane.ys) + 4
    parts = []
    for r, row in enumerate(plane.losses):
        for c, loss in enumerate(row):
            box = {
                "x": 2 + c * across,
                "y": height - 2 - (r + 1) * down,
                "width": across + 0.3,
                "height": down + 0.3,
            }
            tip = f"({figure(plane.xs[c])}, {figure(plane.ys[r])}): loss {nats(loss)} {unit}"
            parts.append(mark(tip, tag("rect", class_=f"s{step_of(loss - low, top - low)}", **box)))
    for k, (x, y, point) in enumerate(plane.corners):
        cx = 2 + across * (0.5 + (x - plane.xs[0]) / wide * (len(plane.xs) - 1))
        span = plane.ys[-1] - plane.ys[0] or 1.0
        cy = height - 2 - down * (0.5 + (y - plane.ys[0]) / span * (len(plane.ys) - 1))
        label = "ABC"[k] if k < 3 else str(k + 1)
        tip = f"{label}, {names[k] if k < len(names) else label}: loss {nats(point.loss)} {unit}"
        parts.append(
            mark(tip, tag("circle", cx=cx, cy=cy, r=10, class_="knob"), text(label, cx, cy + 4, class_="knob-text"))
        )
    lowest = min(min(row) for row in plane.losses)
    words = (
        f"Loss on the plane through three models, {plane.name}: from {nats(lowest)} to "
        f"{nats(max(max(row) for row in plane.losses))} {unit}; at their average {nats(plane.centroid.loss)}."
    )
    return drawing(parts, WIDTH, height, words)
