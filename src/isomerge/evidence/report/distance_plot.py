"""Distances before and after alignment as pairs of dots on one axis, a row per space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isomerge.evidence.report.numerals import figure, ratio
from isomerge.evidence.report.svg import Plot, clipped, drawing, mark, short, tag, text, ticks

WIDTH, LEFT, RIGHT, ROW, HEAD = 380.0, 6.0, 12.0, 36.0, 26.0
UNRELATED = 2**0.5
"""The distance of two equally large, uncorrelated matrices in parts of the norm."""


@dataclass(frozen=True)
class Move:
    """One row: a label, and distances in parts of the norm."""

    label: str
    before: float
    after: float


def distance_plot(moves: Sequence[Move], words: str, *, moved: bool = True) -> Plot:
    """Hollow dots before, full dots after; values beyond the axis lie on its end.

    Args:
        moves: top to bottom.
        words: the text alternative.
        moved: whether anything was aligned; if not, there is one dot in a row.
    """
    top = _top(moves)
    across = WIDTH - LEFT - RIGHT
    height = HEAD + ROW * len(moves) + 4

    def at(value: float) -> float:
        return LEFT + across * value / top if value <= top else WIDTH

    parts = []
    for value in ticks(0, top, 4):
        parts.append(tag("line", x1=at(value), x2=at(value), y1=HEAD - 4, y2=height, class_="grid"))
        parts.append(text(figure(value, 2), at(value), 14, class_="tick " + ("mid" if value else "beg")))
    if top >= UNRELATED:
        parts.append(tag("line", x1=at(UNRELATED), x2=at(UNRELATED), y1=HEAD - 4, y2=height, class_="limit"))
    for number, m in enumerate(moves):
        parts.append(_row(m, HEAD + number * ROW, at(m.before), at(m.after), moved))
    return drawing(parts, WIDTH, height, words)


def _top(moves: Sequence[Move]) -> float:
    """The end of the axis."""
    largest = max((max(m.before, m.after) for m in moves), default=1.0)
    return min(max(largest * 1.06, 1e-6), 1.6)


def _row(m: Move, y: float, before: float, after: float, moved: bool) -> str:
    """Words above, dots below."""
    shown = f"{ratio(m.before)} → {ratio(m.after)}" if moved else ratio(m.before)
    shapes = [
        tag("rect", x=0, y=y, width=WIDTH, height=ROW, class_="hit"),
        text(clipped(m.label, 38), LEFT, y + 14, class_="name"),
        text(shown, WIDTH - RIGHT, y + 14, class_="value end"),
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y + 25, y2=y + 25, class_="track"),
    ]
    if moved:
        shapes.append(tag("line", x1=before, x2=after, y1=y + 25, y2=y + 25, class_="link"))
        shapes.append(_dot(before, y + 25, "before"))
    shapes.append(_dot(after, y + 25, "after" if moved else "before"))
    return mark(f"{m.label}: {shown} of the norm", *shapes)


def _dot(x: float, y: float, kind: str) -> str:
    """A dot, or an arrow at the end of the axis for what lies beyond it."""
    if x > WIDTH - RIGHT:
        return tag("path", d=f"M{short(WIDTH - 1)} {short(y)}l-9 -5.5v11z", class_=kind)
    return tag("circle", cx=x, cy=y, r=5 if kind == "after" else 4.5, class_=kind)


def legend(moves: Sequence[Move], moved: bool) -> list[tuple[Plot, str]]:
    """Swatches, hidden from who hears the page, and what they stand for."""
    dot = tag("circle", cx=8, cy=8, r=4.5, class_="before")
    full = tag("circle", cx=8, cy=8, r=5, class_="after")
    entries = [(dot, "before alignment"), (full, "after")] if moved else [(dot, "distance (not aligned)")]
    if _top(moves) >= UNRELATED:
        dash = tag("line", x1=8, x2=8, y1=1, y2=15, class_="limit")
        entries.append((dash, "1.41: matrices that have nothing in common, as stored"))
    return [(swatch(shape), words) for shape, words in entries]


def swatch(shape: str, width: float = 16) -> Plot:
    """A small drawing beside words that say the same."""
    box = f"0 0 {width:g} 16"
    svg = tag("svg", shape, viewBox=box, width=width, height=16, aria_hidden="true", class_="swatch")
    return Plot(svg, width)
