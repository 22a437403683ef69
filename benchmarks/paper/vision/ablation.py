"""Figure 3 and the reviewers' table: matching without attention, without FFN, without rescaling; the same of ours.

    python -m benchmarks.paper.vision.ablation

Cells `ROW/MATCHING/PAIR` of `benchmarks/results/paper/ablation.json`, and `figure3.png`. What Table 2 has measured
already is read from there.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.paper.results import Results, mean_spread
from benchmarks.paper.vision.drawing import LABELS, ROW_LABELS, figure, save
from benchmarks.paper.vision.endpoints import ENDPOINTS, PAIRS, RESULTS, ends, prepare
from benchmarks.paper.vision.fusions import PAPER_ROWS, SETTINGS, merged
from benchmarks.paper.vision.matching import aligned
from benchmarks.paper.vision.table2 import table

PAPER = ("none", "paper-ffn", "paper-attention", "paper-no-rescale", "paper")
OURS = ("activations-ffn", "activations-attention", "activations-inside", "activations")
SHARED = ("none", "paper-no-rescale", "paper", "activations")  # of Table 2


def cells() -> Results:
    """What Table 2 does not have."""
    return Results(RESULTS / "ablation.json", {**ENDPOINTS, **SETTINGS})


def accuracies(row: str, name: str) -> list[float]:
    """Accuracies of all pairs that were measured, as percentages."""
    found = table() if name in SHARED else cells()
    return [100 * cell["accuracy"] for pair in PAIRS if (cell := found.get(f"{row}/{name}/{pair}"))]


def draw() -> None:
    """The paper's ablation above, ours below."""
    drawn, axes = figure(2, 1, size=(9.0, 6.4), sharey=True)
    for part, names, title in ((axes[0], PAPER, "the paper's matching"), (axes[1], OURS, "ours, with activations")):
        for k, name in enumerate(names):
            found = [accuracies(row, name) for row in PAPER_ROWS]
            where = [r + (k - (len(names) - 1) / 2) * 0.16 for r in range(len(PAPER_ROWS))]
            means, spreads = zip(*(mean_spread(values) for values in found), strict=True)
            part.bar(
                where, means, 0.15, yerr=spreads, label=LABELS[name], error_kw={"linewidth": 0.8}, color=f"C{k}"
            )
        part.set_xticks(range(len(PAPER_ROWS)), [ROW_LABELS[row] for row in PAPER_ROWS])
        part.set_ylabel("test accuracy (%)")
        part.set_title(title, fontsize=10)
        part.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    axes[0].set_ylim(
        0, 1.25 * max(max(accuracies(row, name), default=1) for row in PAPER_ROWS for name in (*PAPER, *OURS))
    )
    save(drawn, "figure3")


def main() -> None:
    """Measure what is missing, and draw."""
    prepare()
    found: Any = cells()
    for name in (*PAPER, *OURS):
        for pair in PAIRS if name not in SHARED else ():
            source = aligned(name, pair)
            for row in PAPER_ROWS:
                if found.has(key := f"{row}/{name}/{pair}"):
                    continue
                began = time.perf_counter()
                cell = merged(row, ends(pair)[0], source)
                found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
                print(f"{key:40s} {100 * cell['accuracy']:6.2f} %", flush=True)
    draw()


if __name__ == "__main__":
    main()
