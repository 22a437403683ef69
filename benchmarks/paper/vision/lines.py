"""Figure 5: the loss on the line between the two models, and its barrier, by matching.

    python -m benchmarks.paper.vision.lines [NAME ...]

25 points, 2000 test images; cells `NAME/PAIR` of `benchmarks/results/paper/lines.json`, and `figure5.png`. The
barrier is the largest excess over the straight line between the endpoints' losses (Entezari et al. 2022); the
paper's own, the range of the loss along the line, is kept beside it.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import isomerge
from benchmarks.paper.results import Results, mean_spread
from benchmarks.paper.vision.drawing import COLOURS, LABELS, figure, save
from benchmarks.paper.vision.endpoints import BATCH, ENDPOINTS, PAIRS, RESULTS, TEST, ends, prepare
from benchmarks.paper.vision.matching import aligned

PAPER = ("none", "paper-attention", "paper-ffn", "paper")
OURS = ("all", "activations", "learned")
POINTS, LIMIT = 25, 2000


def cells() -> Results:
    """Every line."""
    return Results(RESULTS / "lines.json", {**ENDPOINTS, "points": POINTS, "tested_on": f"{LIMIT} test images"})


def line(anchor: Any, source: Any) -> dict[str, Any]:
    """The losses along one line."""
    report = isomerge.barrier(
        anchor, source, data=TEST, spaces="none", points=POINTS, limit=LIMIT, batch_size=BATCH
    )
    (found,) = report["lines"]
    return {key: found[key] for key in ("points", "losses", "accuracies", "barrier", "midpoint")}


def barriers(name: str, kind: str = "entezari") -> list[float]:
    """Of all pairs that were measured."""
    return [cell["barrier"][kind] for pair in PAIRS if (cell := cells().get(f"{name}/{pair}"))]


def draw() -> None:
    """The paper's four settings on the left, ours on the right; a line per pair."""
    drawn, axes = figure(1, 2, size=(9.6, 4.2), sharey=True)
    found = cells()
    for part, names in ((axes[0], PAPER), (axes[1], ("paper", *OURS))):
        for name in names:
            for pair in PAIRS:
                if cell := found.get(f"{name}/{pair}"):
                    part.plot(cell["points"], cell["losses"], color=COLOURS[name], alpha=0.8, linewidth=1.5)
            if values := barriers(name):
                mean, spread = mean_spread(values)
                part.plot([], [], color=COLOURS[name], label=f"{LABELS[name]}: LB {mean:.2f} ± {spread:.2f}")
        part.set_xlabel("from the anchor (0) to the matched model (1)")
        part.legend(frameon=False, fontsize=8, loc="upper center")
    axes[0].set_ylabel("test loss (nats)")
    axes[0].set_ylim(0, 4.9)
    axes[0].set_title("the paper's settings", fontsize=10)
    axes[1].set_title("ours", fontsize=10)
    save(drawn, "figure5")


def main() -> None:
    """Measure what is missing, and draw."""
    prepare()
    found = cells()
    for name in sys.argv[1:] or (*PAPER, *OURS):
        for pair in PAIRS:
            source = aligned(name, pair)
            if found.has(key := f"{name}/{pair}"):
                continue
            began = time.perf_counter()
            cell = line(ends(pair)[0], source)
            found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
            print(f"{key:24s} barrier {cell['barrier']['entezari']:.3f}", flush=True)
    draw()


if __name__ == "__main__":
    main()
