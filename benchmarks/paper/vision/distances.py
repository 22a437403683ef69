"""Figure 4: how far apart the two models are after every way to match them; and what distance says of the merge.

    python -m benchmarks.paper.vision.distances [NAME ...]

Euclidean distance of all weights, as they are stored, from `benchmarks/results/paper/matching.json`; `figure4.png`,
and `distance-and-loss.png`: the loss of the mean against the distance. Cells `NAME/PAIR` of `distances.json` are
the losses of the mean for matchings that Table 2 does not have.
"""

from __future__ import annotations

import sys
import time

from benchmarks.paper.results import Results, mean_spread
from benchmarks.paper.vision.drawing import COLOURS, LABELS, figure, save
from benchmarks.paper.vision.endpoints import ENDPOINTS, PAIRS, RESULTS, ends, prepare
from benchmarks.paper.vision.fusions import merged
from benchmarks.paper.vision.matching import MATCHINGS, aligned, costs
from benchmarks.paper.vision.table2 import COLUMNS, table

SHOWN = (
    "none",
    "otfusion-ffn",
    "otfusion",
    "git-rebasin-inside",
    "git-rebasin",
    "paper-no-rescale",
    "paper",
    "default",
    "all",
    "activations",
    "learned",
)


def cells() -> Results:
    """The merges by the mean that Table 2 does not have."""
    return Results(RESULTS / "distances.json", ENDPOINTS)


def distances(name: str) -> list[float]:
    """Of all pairs."""
    found = costs()
    if name == "none":
        return [found.get(f"paper/{pair}")["distance_stored"] for pair in PAIRS]
    return [cell["distance"] for pair in PAIRS if (cell := found.get(f"{name}/{pair}"))]


def losses(name: str) -> list[float]:
    """Of the mean of the two models, of all pairs."""
    if name in COLUMNS:
        return [cell["loss"] for pair in PAIRS if (cell := table().get(f"simple/{name}/{pair}"))]
    return [cell["loss"] for pair in PAIRS if (cell := cells().get(f"{name}/{pair}"))]


def rank_correlation() -> tuple[float, int]:
    """Spearman's correlation of distance and loss over all matchings and pairs, within a pair; and how many
    points."""
    from scipy.stats import spearmanr

    names = [name for name in SHOWN if len(distances(name)) == len(losses(name)) == len(PAIRS)]
    found = [
        float(spearmanr([distances(n)[k] for n in names], [losses(n)[k] for n in names]).statistic)  # pyright: ignore
        for k in range(len(PAIRS))
    ]
    return sum(found) / len(found), len(names)


def draw() -> None:
    """Bars, and points."""
    names = [name for name in SHOWN if distances(name)]
    drawn, axes = figure(size=(7.2, 4.4))
    means, spreads = zip(*(mean_spread(distances(name)) for name in names), strict=True)
    axes.barh(
        range(len(names)),
        means,
        xerr=spreads,
        color=[COLOURS[n] for n in names],
        error_kw={"linewidth": 1},
    )
    axes.set_yticks(range(len(names)), [LABELS[name] for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * max(m + s for m, s in zip(means, spreads, strict=True)))
    axes.set_xlabel("Euclidean distance of all weights")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", alpha=0.25)
    for k, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        axes.text(mean + spread + 0.6, k, f"{mean:.1f}", va="center", fontsize=8)
    save(drawn, "figure4")
    drawn, axes = figure(size=(7.2, 4.4))
    for name in names:
        marker = "^" if "match" in MATCHINGS[name] else "o"
        axes.plot(
            distances(name), losses(name), marker, color=COLOURS[name], label=LABELS[name], markersize=6, alpha=0.85
        )
    axes.set_xlabel("Euclidean distance of all weights")
    axes.set_ylabel("test loss of the mean (nats)")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(drawn, "distance-and-loss")


def main() -> None:
    """Measure what is missing, and draw."""
    prepare()
    found = cells()
    for name in sys.argv[1:] or SHOWN:
        for pair in PAIRS:
            source = aligned(name, pair)
            if name not in COLUMNS and not found.has(key := f"{name}/{pair}"):
                began = time.perf_counter()
                cell = merged("simple", ends(pair)[0], source)
                found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
    draw()


if __name__ == "__main__":
    main()
