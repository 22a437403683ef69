"""The picture of a search: the loss or the score of every trial, the best so far, and that by each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from isomerge.evidence.pictures import drawn
from isomerge.evidence.report.facts import Search, search_of

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
    search, shown = search_of(report), report["searched"][:MOST]
    panels = 1 + len(shown)
    columns = min(COLUMNS, panels)
    rows = ceil(panels / columns)

    def draw(figure: Any) -> None:
        axes = [figure.add_subplot(rows, columns, k + 1) for k in range(panels)]
        _over_trials(axes[0], search)
        for place, dimension in zip(axes[1:], shown, strict=True):
            _by_value(place, search, dimension, label="best values" if place is axes[1] else None)
        most = len(report["searched"])
        which = f"; the first {MOST} of {most} parameters" if most > MOST else ""
        figure.suptitle(f"What was tried: {len(report['trials'])} trials{which}", fontsize=11)
        # it covers no point there
        figure.legend(frameon=False, fontsize="small", loc="outside lower center", ncols=4)

    return drawn(draw, (max(3.2 * columns, 6.4), 2.7 * rows + 0.6))


def _over_trials(axes: Any, search: Search) -> None:
    """The losses in their order."""
    made = search.measured[1:]
    gains = [*search.gains, (len(search.figures) - 1, search.gains[-1][1])]
    axes.scatter([k for k, _ in made], [x for _, x in made], s=12, color=TRIAL, label="trials")
    axes.step([k for k, _ in gains], [x for _, x in gains], where="post", color=BEST, label="best so far")
    axes.axhline(gains[0][1], color=OWN, linestyle=":", label="the recipe's own")
    axes.set_xlabel("trial")
    axes.set_ylabel(search.label)


def _by_value(axes: Any, search: Search, dimension: Mapping[str, Any], label: str | None = None) -> None:
    """The losses by the values of one parameter, its own and the best marked."""
    name, words = dimension["name"], "choices" in dimension
    made = [(search.values[number][name], x) for number, x in search.measured[1:]]
    number, reached = search.gains[-1]
    best = search.values[number][name]
    axes.scatter([str(v) if words else v for v, _ in made], [x for _, x in made], s=12, color=TRIAL)
    axes.scatter([str(best) if words else best], [reached], s=40, color=BEST, marker="*", zorder=3, label=label)
    if dimension.get("log"):
        axes.set_xscale("log")
    axes.set_xlabel(name, fontsize="small")
