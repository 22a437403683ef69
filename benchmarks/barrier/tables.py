"""Write docs/lab/measured-barriers.md, its picture, and the costs in docs/lab/performance.md from the results.

python benchmarks/barrier/tables.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.barrier import cost_table, curves, limits, reach
from benchmarks.barrier.measurements import RESULTS
from benchmarks.barrier.run import IMAGES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lab" / "measured-barriers.md"
WAYS = {
    "as stored": ("stored",),
    "the paper's spaces": ("paper",),
    "inside layers": ("default",),
    "streams too": ("all",),
    "with activations": ("activations",),
    "searched, 60 s": ("search",),
    "learned, 300 steps": ("distilled-quick", "learned-quick"),
    "learned longest": ("thorough", "distilled", "learned"),
    "no data, activations": ("generated",),
    "no data, learned": ("generated-distilled",),
}
"""The columns: of the rows of `run.py`, the first one that a family has."""
FAMILIES = {
    "vit-digits": "ViT, digits",
    "vit-fashion": "ViT, Fashion-MNIST",
    "llama": "Llama-like",
    "gpt2": "GPT-2-like",
}
WIDTHS = {"vit-digits": 64, "vit-fashion": 64, "llama": 128, "gpt2": 128}
HEAD = """# Measured barriers

How far apart are two models of one architecture that were trained from different seeds, and what does each kind of matching leave of it? The second
model is aligned onto the first, and the loss is measured on test data along the line between them, in the original architecture. *Barrier*: the
largest excess over the straight line between the ends' losses (Entezari et al.), in nats (per byte for language models). Trained and measured here, on
CPU cores shared with other work ([how](#how-to-measure-again)); matching never sees test data. Everything on this page is written by
`benchmarks/barrier/tables.py` from [the results](../../benchmarks/results/barrier), where all figures of all pairs stand. What was tried on the way:
[experiments](experiments.md#matching-models-from-different-seeds-what-was-tried). What it costs: [performance](performance.md#what-does-a-match-between-models-from-different-seeds-cost).
"""
TABLE = """## Two models

Barrier, and in brackets the accuracy of the midpoint in % (of images, or of the next byte): means over the pairs of seeds, with the deviation between pairs. 4 layers each. *As stored* to
*streams too* look at weights alone; *with activations* and *searched* see 512 images or 64 texts; *learned* needs no labels unless marked, and *longest* says in how many steps.
*No data*: examples that the two models make themselves (`isomerge generate`).
"""
NOTES = (
    "¹ with labels. ² before predictions of images were softened (temperature 4). ³ layers were not matched once more where "
    "the streams had ended. Models of width 512 take their products in bfloat16."
)


def family(found: dict[str, Any]) -> str:
    """The row of one family."""
    pairs = [entry for entry in found["pairs"].values() if entry.get("rows")]
    ends = [end["accuracy"] for entry in pairs for end in entry["pair"]["ends"]]
    together = [entry["pair"]["ensemble"]["accuracy"] for entry in pairs]
    cells = [_cell(found, rows, name) for name, rows in WAYS.items()]
    told = f"{100 * fmean(ends):.1f}, {100 * fmean(together):.1f}"
    return f"| {named(found['family'])} | {len(pairs)} | {told} | {' | '.join(cells)} |"


def named(name: str) -> str:
    """What a family is called: its architecture, width and data."""
    kind = next(one for one in sorted(FAMILIES, key=len, reverse=True) if name.startswith(one))
    rest = name.removeprefix(kind)
    halves = ", disjoint halves of the data" if rest.endswith("-halves") else ""
    width = rest.removesuffix("-halves").removeprefix("-width-") or WIDTHS[kind]
    return f"{FAMILIES[kind]}, width {width}{halves}"


def _cell(found: dict[str, Any], rows: Sequence[str], way: str) -> str:
    """Barrier and accuracy of the first of some rows that a family has."""
    row = next((row for row in rows if row in found["summary"]), None)
    if row is None:
        return "–"
    here = [entry["rows"][row] for entry in found["pairs"].values() if row in entry.get("rows", {})]
    barriers = [entry["barrier"]["entezari"] for entry in here]
    accuracy = 100 * fmean(entry["midpoint"]["accuracy"] or 0.0 for entry in here)
    steps = sorted({entry["learned"]["steps"] for entry in here if entry.get("learned", {}).get("steps")})
    told = f"; {steps[0]} steps" if way == "learned longest" and steps else ""
    return f"{limits.spread(barriers)}{_marks(found['family'], row, here)} ({accuracy:.1f}{told})"


def _marks(name: str, row: str, here: Sequence[dict[str, Any]]) -> str:
    """What is different about a cell."""
    learned = [entry.get("learned") or {} for entry in here]
    sharp = any(one.get("target") == "distill" and "temperature" not in one for one in learned)
    before = row == "all" and not all(entry.get("in_place") for entry in here)
    return (
        ("¹" if row.startswith("learned") else "")
        + ("²" if sharp and name.startswith(tuple(IMAGES)) else "")
        + ("³" if before else "")
    )


def families() -> list[dict[str, Any]]:
    """The results of all families, in the order of the table."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return sorted((one for one in found if "family" in one), key=lambda one: named(one["family"]))


def page() -> str:
    """The whole page."""
    every = families()
    lines = [
        HEAD,
        TABLE,
        f"| models | pairs | ends and ensemble, accuracy | {' | '.join(WAYS)} |",
        f"|---|---|---|{'---|' * len(WAYS)}",
    ]
    lines += [family(found) for found in every]
    lines += [
        "",
        NOTES,
        "",
        "![Loss along the lines, by kind of matching](../../benchmarks/results/barrier/curves.png)",
        "",
    ]
    lines += [*reach.section(every, named), *limits.sections(RESULTS, named)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    cost_table.PAGE.write_text(cost_table.page())
    curves.draw(families(), RESULTS / "curves.png")
