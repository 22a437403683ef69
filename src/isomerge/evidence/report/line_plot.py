"""Curves: loss and accuracy on the line between two models, the barrier while a match is learned, a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isomerge.evidence.report.distance_plot import swatch
from isomerge.evidence.report.numerals import figure
from isomerge.evidence.report.svg import Plot, clipped, drawing, mark, short, tag, text, ticks

WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 14.0, 34.0
STYLES = 6
"""Ways to draw a curve, by colour, dashes and markers; then they repeat."""


@dataclass(frozen=True)
class Curve:
    """A curve, and what every point of it tells."""

    name: str
    points: tuple[tuple[float, float], ...]
    tips: tuple[str, ...]
    style: int
    """0 is drawn as what was before, 1 in the accent colour."""
    joined: str = "L"
    """How its points are: ``L`` by straight lines, ``H`` by steps, empty not at all."""


@dataclass(frozen=True)
class Level:
    """A horizontal line, or a single point where ``at`` says where."""

    name: str
    value: float
    tip: str
    at: float | None = None


@dataclass(frozen=True)
class Frame:
    """The axes of a plot: their ends (the first one begins at 0), its ticks, and how figures are written."""

    low: float
    high: float
    places: tuple[tuple[float, str], ...]
    write: Callable[[float], str] = lambda value: figure(value, 3)
    high_x: float = 1.0

    def x(self, at: float) -> float:
        """In pixels."""
        return LEFT + (WIDTH - LEFT - RIGHT) * at / (self.high_x or 1.0)

    def y(self, value: float) -> float:
        """In pixels, downwards."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))


def line_plot(curves: Sequence[Curve], frame: Frame, words: str, levels: Sequence[Level] = ()) -> Plot:
    """A plot of curves, with a dotted line or a diamond for every level."""
    parts = []
    for value in ticks(frame.low, frame.high, 4):
        y = frame.y(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(text(frame.write(value), LEFT - 7, y + 4, class_="tick end"))
    for at, name in frame.places:
        x = frame.x(at)
        where = "beg" if at <= 0 else "end" if at >= frame.high_x else "mid"
        parts.append(tag("line", x1=x, x2=x, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, class_="axis"))
        parts.append(text(clipped(name, 19), x, HEIGHT - BOTTOM + 19, class_=f"tick {where}"))
    bottom = HEIGHT - BOTTOM
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
    for level in levels:
        if level.at is None:
            y = frame.y(level.value)
            hit = tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="wide")
            parts.append(mark(level.tip, hit, tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="level")))
    for curve in sorted(curves, key=lambda c: c.style == 1):  # the accent on top
        parts += _curve(curve, frame)
    for level in levels:
        if level.at is not None:
            parts.append(mark(level.tip, _diamond(frame.x(level.at), frame.y(level.value))))
    return drawing(parts, WIDTH, HEIGHT, words)


def _curve(curve: Curve, frame: Frame) -> list[str]:
    style = f"l{curve.style % STYLES}"
    at = [(frame.x(x), frame.y(y)) for x, y in curve.points]
    middle = "V" if curve.joined == "H" else " "
    path = "M{} {}".format(*map(short, at[0]))
    path += "".join(f"{curve.joined}{short(x)}{middle}{short(y)}" for x, y in at[1:])
    parts = [tag("path", d=path, class_=f"curve {style}")] if curve.joined else []
    for (x, y), tip in zip(at, curve.tips, strict=True):
        shapes = (
            tag("circle", cx=x, cy=y, r=9, class_="hit"),
            tag("circle", cx=x, cy=y, r=2.6, class_=f"dot {style}"),
        )
        parts.append(mark(tip, *shapes))
    return parts


def _diamond(x: float, y: float) -> str:
    return tag("path", d=f"M{short(x)} {short(y - 7)}l7 7l-7 7l-7 -7z", class_="diamond")


def legend(curves: Sequence[Curve], levels: Sequence[Level]) -> list[tuple[Plot, str]]:
    """Swatches, and what they stand for."""
    entries = []
    for curve in curves:
        style = f"l{curve.style % STYLES}"
        line = tag("line", x1=0, x2=30, y1=8, y2=8, class_=f"curve {style}")
        dot = tag("circle", cx=15, cy=8, r=2.6, class_=f"dot {style}")
        entries.append((swatch(line if curve.joined else dot, 30), curve.name))
    for level in levels:
        shape = tag("line", x1=0, x2=30, y1=8, y2=8, class_="level") if level.at is None else _diamond(15, 8)
        entries.append((swatch(shape, 30), level.name))
    return entries


def ends_of(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for some values: from 0 where they come near it, else close around them."""
    low, high = min(values), max(values)
    if 0 <= low < 0.5 * high:
        low = 0.0
    room = (high - low or abs(high) or 1.0) * 0.06
    return (low if low == 0 else low - room), high + room
