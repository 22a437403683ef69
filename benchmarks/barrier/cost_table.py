"""What matching costs, as tables: a part of docs/lab/performance.md, from ``benchmarks/results/barrier/cost.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.barrier.cost import BASE, KINDS
from benchmarks.barrier.measurements import RESULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lab" / "performance.md"
START, END = "<!-- matching: begin -->", "<!-- matching: end -->"


def page() -> str:
    """The page with the tables of the results as they are."""
    head, rest = PAGE.read_text().split(START)
    return "\n".join([head + START, *cost(RESULTS / "cost.json"), END]) + rest.split(END)[1]


def cost(path: Path) -> list[str]:
    """Time and memory of every kind of matching, and how they grow."""
    found = json.loads(path.read_text())
    settings = found["settings"]
    lines = [
        "CPU seconds (one thread) and peak memory of a whole `align` of random Llama-like models in float32, libraries "
        f"included: {settings['sweeps']} sweeps, {settings['rows']} rows of activations of 64 windows, "
        f"{settings['learning_steps']} learning steps of {settings['batch']} (which start from activations, and judge "
        f"the path before and after). *search* is activations and the first {settings['moves']} moves that `--search` "
        "tries (matching neurons by what they compute, orders of heads), judged on half of the windows; where its "
        "seconds are given in place of moves, they are what it costs. *none* to *all* were measured after the other "
        "columns (November 2026), while nothing else ran; a step of learning and its start take less since.",
        "",
        f"| model | parameters | {' | '.join(KINDS)} |",
        f"|---|---|{'---|' * len(KINDS)}",
    ]
    for size, row in found["rows"].items():
        cells = [_cost(row[kind]) if kind in row else "–" for kind in KINDS]
        lines.append(f"| {size} | {row['parameters'] / 1e6:.2f} M | {' | '.join(cells)} |")
    lines += [
        "",
        "How CPU seconds beyond those of *none* (reading and libraries) grow: the exponent p of size^p, by least squares "
        "of logarithms, over the sizes that differ in nothing else. *search* counts its moves alone, without the match "
        "that they start from. Figures of a few tenths of a second, and such as were measured beside other work, are "
        "rough.",
        "",
        f"| grows with | sizes | {' | '.join(KINDS[1:])} |",
        f"|---|---|{'---|' * (len(KINDS) - 1)}",
    ]
    for axis in BASE:
        fits = exponents(found["rows"], axis)
        powers = ["–" if fits[kind] is None else f"{fits[kind]:.1f}" for kind in KINDS[1:]]
        lines.append(f"| {axis} | {', '.join(map(str, sorted(fits['sizes'])))} | {' | '.join(powers)} |")
    return lines


def _cost(figures: dict[str, Any]) -> str:
    """Seconds, how many of them are of moves alone, and memory."""
    moves = f" ({figures['own_cpu_seconds']:.1f} s of moves)" if "own_cpu_seconds" in figures else ""
    return f"{figures['cpu_seconds']:.1f} s{moves}, {figures['peak_bytes'] / 1e6:.0f} MB"


def exponents(rows: dict[str, Any], axis: str) -> dict[str, Any]:
    """How each kind's seconds beyond its start grow along one axis, with the ``sizes`` of it; None where a figure
    is missing.

    Args:
        rows: by size, such as ``width 128 depth 4 heads 8``.
        axis: one of these words; the others are those of the base.
    """
    found: dict[str, Any] = {"sizes": []}
    chosen: dict[int, dict[str, Any]] = {}
    for name, row in rows.items():
        words = name.split()
        size = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        if all(size[other] == BASE[other] for other in BASE if other != axis):
            chosen[size[axis]] = row
    found["sizes"] = list(chosen)
    for kind in KINDS[1:]:
        costs = {n: _growing(row, kind) for n, row in chosen.items()}
        points = [(math.log(n), math.log(cost)) for n, cost in costs.items() if cost is not None and cost > 0]
        found[kind] = slope(points) if len(points) == len(chosen) > 1 else None
    return found


def _growing(row: dict[str, Any], kind: str) -> float | None:
    """A kind's CPU seconds beyond those of reading and libraries, of the search those of its moves; None where it
    has no figure."""
    if kind == "search":
        return row.get(kind, {}).get("own_cpu_seconds")
    return row[kind]["cpu_seconds"] - row["none"]["cpu_seconds"] if kind in row else None


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line of least squares."""
    middle = [sum(part) / len(points) for part in zip(*points, strict=True)]
    rise = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return rise / sum((x - middle[0]) ** 2 for x, _ in points)
