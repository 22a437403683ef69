"""The picture of a search: the loss or the score of every trial, the best so far, and that by each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from isomerge.evidence.pictures import drawn
from isomerge.tuning.objective import LOSS, TASKS
from isomerge.tuning.task_documents import SCORE

PICTURE = "tune.png"
COLUMNS = 4
MOST = 11
"""Parameters that are drawn."""
TRIAL, BEST, OWN = "#b8c4d0", "#1f5fa8", "#8c8c8c"


def search_picture(report: Mapping[str, Any]) -> bytes:
    """A PNG.

    Args:
        report: ``trials`` (``values``, and ``loss`` or ``score``), ``start`` and ``best`` (``values``,
            ``search``), ``searched``, ``search_unit``.
    """
    shown = report["searched"][:MOST]
    panels = 1 + len(shown)
    columns = min(COLUMNS, panels)
    rows = ceil(panels / columns)

    def draw(figure: Any) -> None:
        axes = [figure.add_subplot(rows, columns, k + 1) for k in range(panels)]
        _over_trials(axes[0], report)
        for place, dimension in zip(axes[1:], shown, strict=True):
            _by_value(place, report, dimension, label="best values" if place is axes[1] else None)
        most = len(report["searched"])
        which = f"; the first {MOST} of {most} parameters" if most > MOST else ""
        figure.suptitle(f"What was tried: {len(report['trials'])} trials{which}", fontsize=11)
        figure.legend(
            frameon=False, fontsize="small", loc="outside lower center", ncols=4
        )  # it covers no point there

    return drawn(draw, (max(3.2 * columns, 6.4), 2.7 * rows + 0.6))


def figure_of(report: Mapping[str, Any]) -> str:
    """What the figures of a search are called: ``score`` of tasks, more of which is better, or ``loss``."""
    return SCORE if report["objective"] == TASKS else LOSS


def _over_trials(axes: Any, report: Mapping[str, Any]) -> None:
    """The losses in their order."""
    start, key = report["start"]["search"], figure_of(report)
    better = max if key == SCORE else min
    numbers = [k for k, row in enumerate(report["trials"], 1) if row[key] is not None]
    figures = [row[key] for row in report["trials"] if row[key] is not None]
    best, so_far = start, []
    for figure in figures:
        best = better(best, figure)
        so_far.append(best)
    axes.scatter(numbers, figures, s=12, color=TRIAL, label="trials")
    axes.step([0, *numbers], [start, *so_far], where="post", color=BEST, label="best so far")
    axes.axhline(start, color=OWN, linestyle=":", label="the recipe's own")
    axes.set_xlabel("trial")
    axes.set_ylabel(SCORE if key == SCORE else f"loss ({report['search_unit']})")


def _by_value(axes: Any, report: Mapping[str, Any], dimension: Mapping[str, Any], label: str | None = None) -> None:
    """The losses by the values of one parameter, its own and the best marked."""
    name, words, key = dimension["name"], "choices" in dimension, figure_of(report)
    rows = [row for row in report["trials"] if row[key] is not None]
    shown = [str(row["values"][name]) if words else row["values"][name] for row in rows]
    best = report["best"]["values"][name]
    axes.scatter(shown, [row[key] for row in rows], s=12, color=TRIAL)
    axes.scatter(
        [str(best) if words else best],
        [report["best"]["search"]],
        s=40,
        color=BEST,
        marker="*",
        zorder=3,
        label=label,
    )
    if dimension.get("log"):
        axes.set_xscale("log")
    axes.set_xlabel(name, fontsize="small")
