"""What a figure of a report is made of: plots, their legend, and a table that says the same."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.evidence.report.svg import Plot


@dataclass(frozen=True)
class Table:
    """Rows of words; the first of every row names it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    title: str
    lead: str
    plots: tuple[tuple[str, Plot], ...]
    """Captions and pictures."""
    legend: tuple[tuple[Plot, str], ...] = ()
    """Swatches, and what they stand for."""
    table: Table | None = None
    wide: bool = False
    """Whether it takes the whole width of a page."""
    open_table: bool = False
    """Whether the table is shown beside the plots."""
