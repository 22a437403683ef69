"""What the Python API returns, as a notebook shows it: plain dicts that draw themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.evidence.report.contents import subtitle_of, title_of
from isomerge.evidence.report.facts import facts_of, short_names
from isomerge.evidence.report.figure import Table
from isomerge.evidence.report.folder import Written, earlier_alignment
from isomerge.evidence.report.loss_facts import losses_of
from isomerge.evidence.report.loss_figures import loss_figure, plane_figure
from isomerge.evidence.report.page import distance_figures, fragment_of, loss_figures
from isomerge.evidence.report.verdict import verdict_of


class Report(dict[str, Any]):
    """The report of a command: a ``dict`` in every way (``json.dumps``, ``==``, ``copy``), which a notebook shows
    as figures."""

    def _repr_html_(self) -> str | None:
        """The verdict, the figures or the values; None where a plain dict says more."""
        try:
            return fragment(self)
        except IsomergeError:  # changed by hand: the notebook then shows the dict
            return None


def fragment(report: Mapping[str, Any]) -> str:
    """The part of a page that shows a report of any command.

    Raises:
        IsomergeError: the report is damaged.
    """
    command = report.get("command")
    if command in ("merge", "align", "diff"):
        return _of_distances(report)
    if command == "barrier":
        return _of_losses(report)

    rows = tuple((name.replace("_", " "), _plain(value)) for name, value in report.items() if _is_plain(value))
    title = ", ".join(map(str, report.get("models") or [report.get("model", "")]))
    return fragment_of(f"isomerge {command}", title, tables=[Table("Values", ("", "value"), rows)])


def _of_distances(report: Mapping[str, Any]) -> str:

    facts = facts_of(report)
    written = Written(facts, earlier=earlier_alignment(facts))
    figures = [*loss_figures(written, ()), *distance_figures(written)]
    return fragment_of(title_of(facts), subtitle_of(written), verdict_of(written), figures)


def _of_losses(report: Mapping[str, Any]) -> str:

    losses = losses_of(report)
    figures = [*([loss_figure(losses)] if losses.lines else []), *([plane_figure(losses)] if losses.planes else [])]
    return fragment_of("isomerge barrier", ", ".join(short_names(losses.models)), figures=figures)


def _is_plain(value: Any) -> bool:
    """Whether a value fits a cell: no mapping, and no long list."""
    return not isinstance(value, Mapping) and (not isinstance(value, (list, tuple)) or len(value) <= 4)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
