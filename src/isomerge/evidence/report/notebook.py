"""What the Python API returns, as a notebook shows it: plain dicts that draw themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.evidence.report.facts import facts_of, short_names
from isomerge.evidence.report.folder import Written, earlier_alignment
from isomerge.evidence.report.loss_facts import losses_of
from isomerge.evidence.report.verdict import verdict_of


class Report(dict[str, Any]):
    """The report of a command: a ``dict`` in every way (``json.dumps``, ``==``, ``copy``), which is told in one
    line, and which a notebook shows as figures; ``dict(report)`` shows all of it."""

    def __repr__(self) -> str:
        return line_of(self)

    def _repr_html_(self) -> str | None:
        """The verdict, the figures or the values; None where a plain dict says more."""
        try:
            return fragment(self)
        except IsomergeError:  # changed by hand: the notebook then shows the dict
            return None


def line_of(report: Mapping[str, Any]) -> str:
    """A report in one line: of what command and which models, and what came out."""
    command = report.get("command")
    models = report.get("models") or [
        report[name] for name in ("model", "out") if isinstance(report.get(name), str)
    ]
    refs = [str(model.get("model") if isinstance(model, Mapping) else model) for model in models]
    beginning = [
        " ".join(map(str, filter(None, ("isomerge", command)))),
        *([" and ".join(short_names(refs))] if refs else []),
    ]
    came = [words for words in (tell(report) for tell in _TOLD) if words][:TOLD]
    return f"<{' of '.join(beginning)}{': ' if came else ''}{', '.join(came)}; {len(report)} keys>"


def _verdict(report: Mapping[str, Any]) -> str:
    verdict = report.get("verdict")
    code = verdict.get("code") if isinstance(verdict, Mapping) else verdict
    return str(code).replace("_", " ") if code else ""


def _distance(report: Mapping[str, Any]) -> str:
    distance = report.get("distance")
    if isinstance(distance, (int, float)):
        return f"distance {distance:.4g}"
    if not isinstance(distance, Mapping) or not {"before", "after"} <= distance.keys():
        return ""
    before, after = distance["before"], distance["after"]
    return f"distance {before:.4g} before and {after:.4g} after"


def _loss(report: Mapping[str, Any]) -> str:
    measured = report.get("measured")
    if isinstance(measured, Mapping):
        return f"loss {measured['merged']['loss']:.4g} {measured['unit']}"
    lines = report.get("lines")
    if report.get("command") == "barrier" and lines:
        return f"barrier {lines[-1]['barrier']['entezari']:.4g} {report['unit']} ({lines[-1]['name']})"
    rows = report.get("models") or ()
    losses = ", ".join(f"{row['loss']:.4g}" for row in rows if isinstance(row, Mapping) and "loss" in row)
    return f"loss {losses}" if losses else ""


def _truths(report: Mapping[str, Any]) -> str:
    said = (f"{name}: {_plain(report[name])}" for name in ("same", "sound") if name in report)
    return ", ".join(said)


def _counts(report: Mapping[str, Any]) -> str:
    named = ("parameters", "examples", "taps", "layers", "rank", "methods", "redundant_dimensions")
    counted = ((name, report.get(name)) for name in named)
    return ", ".join(
        f"{len(n) if isinstance(n, list) else n} {name.replace('_', ' ')}"
        for name, n in counted
        if isinstance(n, (int, list)) and not isinstance(n, bool)
    )


_TOLD = (_truths, _verdict, _loss, _distance, _counts)
"""What may have come out, the weightiest first."""
TOLD = 3
"""As many of them are told."""


def fragment(report: Mapping[str, Any]) -> str:
    """The part of a page that shows a report of any command.

    Raises:
        IsomergeError: the report is damaged.
    """
    # every command returns a report, and few of them are shown by a notebook: the page is loaded then
    from isomerge.evidence.report.figure import Table
    from isomerge.evidence.report.page import fragment_of

    command = report.get("command")
    if command in ("merge", "align", "diff"):
        return _of_distances(report)
    if command == "barrier":
        return _of_losses(report)

    rows = tuple((name.replace("_", " "), _plain(value)) for name, value in report.items() if _is_plain(value))
    title = ", ".join(map(str, report.get("models") or [report.get("model", "")]))
    return fragment_of(f"isomerge {command}", title, tables=[Table("Values", ("", "value"), rows)])


def _of_distances(report: Mapping[str, Any]) -> str:
    from isomerge.evidence.report.contents import subtitle_of, title_of
    from isomerge.evidence.report.loss_figures import search_figure
    from isomerge.evidence.report.page import distance_figures, fragment_of, loss_figures

    facts = facts_of(report)
    written = Written(facts, earlier=earlier_alignment(facts))
    figures = [*filter(None, [search_figure(facts.search)]), *loss_figures(written, ()), *distance_figures(written)]
    return fragment_of(title_of(facts), subtitle_of(written), verdict_of(written), figures)


def _of_losses(report: Mapping[str, Any]) -> str:
    from isomerge.evidence.report.loss_figures import loss_figure, plane_figure
    from isomerge.evidence.report.page import fragment_of

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
