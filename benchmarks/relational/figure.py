"""The figures of the comparison: loss against learning rate, and what every step's way along the orbit was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.relational.summary import Summary

COLOURS = {
    "standard": "0.35",
    "quotient": "#1f78b4",
    "rebalanced": "#7570b3",
    "invariant": "#1b9e77",
    "relational": "#d95f02",
    "forms": "#e7298a",
}
MARKERS = dict(zip(COLOURS, "osD^vP", strict=True))


def _figure(columns: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found, axes = pyplot.subplots(1, columns, figsize=(4.9 * columns, 4.1), layout="constrained", squeeze=False)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.set_xscale("log")
        axis.set_xlabel("peak learning rate")
    return found, axes[0]


def draw_rates(
    tasks: Mapping[str, Summary], titles: Mapping[str, str], labels: Mapping[str, str], path: Path
) -> None:
    """Test loss against learning rate, one panel per task; a run that failed stands at the upper edge."""
    found, axes = _figure(len(tasks))
    for axis, (task, summary) in zip(axes, tasks.items(), strict=True):
        lowest = summary.best_of_all([*labels])
        top = summary.known + 0.05 * (summary.known - lowest)
        for arm in summary.arms([*labels]):
            losses = {r: loss if math.isfinite(loss) else top for r, loss in summary.losses(arm).items()}
            axis.plot(
                [*losses],
                [*losses.values()],
                color=COLOURS[arm],
                marker=MARKERS[arm],
                markersize=5,
                label=labels[arm],
            )
        axis.axhline(summary.known, color="0.7", linewidth=0.8, linestyle="--")
        axis.set_title(titles[task])
        axis.set_ylabel("test loss (nats)")
    _save(found, axes[0], path)


def draw_orbit(
    tasks: Mapping[str, Summary], titles: Mapping[str, str], labels: Mapping[str, str], path: Path
) -> None:
    """The way along orbits, as a share of the norm of the weights, against learning rate."""
    found, axes = _figure(len(tasks))
    for axis, (task, summary) in zip(axes, tasks.items(), strict=True):
        for arm in summary.arms([*labels]):
            walked = {
                rate: cell["orbit"]["walked"]
                for rate, cell in summary.sweep(arm).items()
                if cell["orbit"] and cell["orbit"]["walked"] > 0
            }
            if walked:
                colour, marker = COLOURS[arm], MARKERS[arm]
                axis.plot(
                    [*walked], [*walked.values()], color=colour, marker=marker, markersize=5, label=labels[arm]
                )
        axis.set_yscale("log")
        axis.set_title(titles[task])
        axis.set_ylabel("way along orbits / norm of the weights")
    _save(found, axes[0], path)


def _save(found: Any, axis: Any, path: Path) -> None:
    from matplotlib import pyplot

    found.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(found)
