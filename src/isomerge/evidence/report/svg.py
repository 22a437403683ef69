"""Plots as SVG text: elements with everything escaped, marks with tooltips, axes, and the steps of a scale.

Colours are classes (``s0`` to ``s8`` for a sequential scale, ``l0`` and so on for lines), so that the style sheet
of the page decides them for light, dark and paper. A mark is a group with a ``title``: browsers show it when the
pointer rests, and the page's script for the keyboard as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

STEPS = 9
"""Of the sequential colour scale."""


@dataclass(frozen=True)
class Plot:
    """One picture: SVG markup in which every name is escaped, and its natural width."""

    svg: str
    width: float

    def __html__(self) -> str:
        """Templates take it for markup."""
        return self.svg


def tag(name: str, *children: str, **attributes: str | float | None) -> str:
    """An element; ``class_`` is ``class``, underscores are hyphens. Children are markup, attribute values are
    escaped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else short(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(children)
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def text(words: str, x: float, y: float, **attributes: str | float | None) -> str:
    """Words at a point."""
    return tag("text", escape(words), x=x, y=y, **attributes)


def mark(tip: str, *shapes: str) -> str:
    """Shapes that tell something when they are pointed at."""
    return tag("g", tag("title", escape(tip)), *shapes, class_="mark")


def short(x: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    text = f"{x:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def drawing(children: Sequence[str], width: float, height: float, words: str) -> Plot:
    """A picture with a text alternative.

    Args:
        children: markup.
        width, height: in pixels, when there is room; narrower screens shrink it.
        words: what who does not see it is told.
    """
    svg = tag(
        "svg", *children, viewBox=f"0 0 {short(width)} {short(height)}", width=width, height=height, role="img",
        aria_label=words,
    )  # fmt: skip
    return Plot(svg, width)


def step_of(value: float, top: float) -> int:
    """The colour of a value on the scale from 0 to ``top``: 0 to `STEPS` - 1."""
    return min(STEPS - 1, max(0, int(min(value / top, 1.0) * STEPS))) if top > 0 else 0


def round_up(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 5 times a power of ten that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 5) if step * power >= value * (1 - 1e-9)), 10 * power)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values, about ``count`` of them."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    power = 10.0 ** floor(log10(raw))
    step = next((s * power for s in (1, 2, 2.5, 5) if s * power >= raw * (1 - 1e-9)), 10 * power)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def clipped(words: str, length: int) -> str:
    """A name that fits, its middle left out where it is long."""
    if len(words) <= length:
        return words
    keep = length - 1
    return f"{words[: (keep + 1) // 2]}…{words[len(words) - keep // 2 :]}"
