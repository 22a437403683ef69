"""The paper's figures, drawn from the results.

An SVG has no date in it, so that equal figures are equal files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks.harness import RESULTS, mean_spread
from benchmarks.paper import others, vits
from benchmarks.paper.vits import PAIRS

PAPER = RESULTS / "paper"
LABELS = {name: matching.label for name, matching in vits.MATCHINGS.items()}
COLOURS = {name: matching.colour for name, matching in vits.MATCHINGS.items()}
ROW_LABELS = {name: row.label for name, row in vits.ROWS.items()}


# ---------------------------------------------------------------------------------------------------------- figures of


@cache
def cells(name: str) -> dict[str, Any]:
    """The measured cells of a results file of the paper.

    Raises:
        KeyError: nothing was measured.
    """
    path = PAPER / f"{name}.json"
    if not path.is_file():
        raise KeyError(name)
    return json.loads(path.read_text())["cells"]


def over(name: str, key: str, figure: str = "accuracy") -> list[float]:
    """A figure of the cells ``KEY/PAIR`` of all pairs; accuracies in percent.

    Raises:
        KeyError: a pair was not measured.
    """
    numbers = [cells(name)[f"{key}/{pair}"][figure] for pair in PAIRS]
    return [100 * number for number in numbers] if figure == "accuracy" else numbers


def accuracies(row: str, matching: str) -> list[float]:
    """Of a merge; what Table 2 has is there alone."""
    return over("table2" if matching in vits.COLUMNS else "ablation", f"{row}/{matching}")


def distances(matching: str) -> list[float]:
    """Between the models of a pair, once matched."""
    return (
        over("matching", "paper", "distance_stored")
        if matching == "none"
        else over("matching", matching, "distance")
    )


def losses(matching: str) -> list[float]:
    """Of the mean of the models of a pair, once matched."""
    return (
        over("table2", f"simple/{matching}", "loss")
        if matching in vits.COLUMNS
        else over("distances", matching, "loss")
    )


def barriers(matching: str, sort: str = "entezari") -> list[float]:
    """Of the line between the models of a pair, by one of the definitions."""
    return [cell[sort] for cell in over("lines", matching, "barrier")]


def partly(matching: str, layers: Collection[int]) -> list[float]:
    """Losses of the mean where some layers are matched."""
    return over("layers", f"{matching}/{vits.layers_key(layers)}", "loss")


def deep(matching: str, kind: str) -> list[float]:
    """Losses of the mean of the two ViTs of 24 layers, of all choices of a kind."""
    keys = (f"{matching}/{vits.layers_key(layers)}" for layers in others.DEEP_CHOICES[kind])
    return [cells("deep-layers")[key]["loss"] for key in keys]


# ------------------------------------------------------------------------------------------------------------ drawing


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7.0, 4.0), **more: Any) -> tuple[Any, Any]:
    """A figure and its axes, without frames above and to the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", **more)
    for part in drawn.axes:
        part.spines[["top", "right"]].set_visible(False)
        part.grid(axis="y", alpha=0.25)
        part.set_axisbelow(True)
    return drawn, axes


def save(drawn: Any, name: str) -> None:
    """Write `NAME.png` and `NAME.svg` beside the results."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = name
    drawn.savefig(PAPER / f"{name}.png", dpi=120)
    drawn.savefig(PAPER / f"{name}.svg", metadata={"Date": None})
    pyplot.close(drawn)


def figure3() -> None:
    drawn, axes = figure(2, 1, size=(9.0, 6.4), sharey=True)
    parts = ((vits.ABLATED, "the paper's matching"), (vits.ABLATED_OURS, "ours, with activations"))
    every = {name: [accuracies(row, name) for row in vits.PAPER_ROWS] for names, _ in parts for name in names}
    for part, (names, title) in zip(axes, parts, strict=True):
        for k, name in enumerate(names):
            where = [r + (k - (len(names) - 1) / 2) * 0.16 for r in range(len(vits.PAPER_ROWS))]
            means, spreads = zip(*map(mean_spread, every[name]), strict=True)
            part.bar(
                where, means, 0.15, yerr=spreads, label=LABELS[name], error_kw={"linewidth": 0.8}, color=f"C{k}"
            )
        part.set_xticks(range(len(vits.PAPER_ROWS)), [ROW_LABELS[row] for row in vits.PAPER_ROWS])
        part.set_ylabel("test accuracy (%)")
        part.set_title(title, fontsize=10)
        part.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    axes[0].set_ylim(0, 1.25 * max(max(pairs) for rows in every.values() for pairs in rows))
    save(drawn, "figure3")


def figure4() -> None:
    names = vits.DISTANT
    drawn, axes = figure(size=(7.2, 4.4))
    means, spreads = zip(*(mean_spread(distances(name)) for name in names), strict=True)
    colours = [COLOURS[name] for name in names]
    axes.barh(range(len(names)), means, xerr=spreads, color=colours, error_kw={"linewidth": 1})
    axes.set_yticks(range(len(names)), [LABELS[name] for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * max(m + s for m, s in zip(means, spreads, strict=True)))
    axes.set_xlabel("Euclidean distance of all weights")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", alpha=0.25)
    for k, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        axes.text(mean + spread + 0.6, k, f"{mean:.1f}", va="center", fontsize=8)
    save(drawn, "figure4")


def distance_and_loss() -> None:
    """The loss of the mean against the distance, one point per matching and pair."""
    drawn, axes = figure(size=(7.2, 4.4))
    for name in vits.DISTANT:
        marker = "^" if "match" in vits.MATCHINGS[name].options else "o"
        style = {"color": COLOURS[name], "label": LABELS[name], "markersize": 6, "alpha": 0.85}
        axes.plot(distances(name), losses(name), marker, **style)
    axes.set_xlabel("Euclidean distance of all weights")
    axes.set_ylabel("test loss of the mean (nats)")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(drawn, "distance-and-loss")


def figure5() -> None:
    drawn, axes = figure(1, 2, size=(9.6, 4.2), sharey=True)
    for part, names in zip(axes, (vits.LINES, ("paper", *vits.LINES_OURS)), strict=True):
        for name in names:
            for pair in PAIRS:
                cell = cells("lines")[f"{name}/{pair}"]
                part.plot(cell["points"], cell["losses"], color=COLOURS[name], alpha=0.8, linewidth=1.5)
            mean, spread = mean_spread(barriers(name))
            part.plot([], [], color=COLOURS[name], label=f"{LABELS[name]}: LB {mean:.2f} ± {spread:.2f}")
        part.set_xlabel("from the anchor (0) to the matched model (1)")
        part.legend(frameon=False, fontsize=8, loc="upper center")
    axes[0].set_ylabel("test loss (nats)")
    axes[0].set_ylim(0, 4.9)
    axes[0].set_title("the paper's settings", fontsize=10)
    axes[1].set_title("ours", fontsize=10)
    save(drawn, "figure5")


def of_layers(
    name: str, choices: Mapping[str, Sequence[Collection[int]]], draw: Callable[[Any, str, str, list[int]], None]
) -> None:
    """One layer, the last and the first ones side by side; `draw` puts a matching onto one of the three."""
    drawn, axes = figure(1, 3, size=(9.6, 3.6), sharey=True)
    titles = {"single": "one layer", "tail": "the last layers", "head": "the first layers"}
    for part, (kind, title) in zip(axes, titles.items(), strict=True):
        at = [min(layers) if kind == "single" else len(layers) for layers in choices[kind]]
        for matching in vits.PARTLY:
            draw(part, matching, kind, at)
        part.set_title(f"{title} matched", fontsize=10)
        part.set_xlabel("layer" if kind == "single" else "number of layers")
        if len(at) <= vits.DEPTH + 1:
            part.set_xticks(at)
    axes[0].set_ylabel("test loss of the mean (nats)")
    axes[0].legend(frameon=False, fontsize=8)
    save(drawn, name)


def figure6() -> None:
    def draw(part: Any, matching: str, kind: str, at: list[int]) -> None:
        spread = [mean_spread(partly(matching, layers)) for layers in vits.CHOICES[kind]]
        style: dict[str, Any] = {"color": COLOURS[matching], "label": LABELS[matching], "marker": "o"}
        part.errorbar(at, *zip(*spread, strict=True), capsize=2, markersize=4, **style)

    of_layers("figure6", vits.CHOICES, draw)


def figure6_deep() -> None:
    def draw(part: Any, matching: str, kind: str, at: list[int]) -> None:
        style: dict[str, Any] = {"color": COLOURS[matching], "label": LABELS[matching], "marker": "o"}
        part.plot(at, deep(matching, kind), markersize=3, **style)

    of_layers("figure6-deep", others.DEEP_CHOICES, draw)


FIGURES = (figure3, figure4, distance_and_loss, figure5, figure6, figure6_deep)
