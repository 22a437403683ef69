"""How long the command line takes to answer, against an empty interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

from benchmarks.harness import Benchmark, Section, markdown
from benchmarks.performance.processes import PROGRAM, environment

EMPTY = (sys.executable, "-c", "pass")
ROWS = {
    "python -c pass": EMPTY,
    "isomerge --help": (PROGRAM, "--help"),
    "isomerge merge --help": (PROGRAM, "merge", "--help"),
    "import isomerge": (sys.executable, "-c", "import isomerge"),
    "import torch": (sys.executable, "-c", "import torch"),
}
RUNS = 15


def measure(command: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of a command, in turns with an empty interpreter: medians, and the median of the ratios."""
    settings, times = environment(os.cpu_count() or 1), []
    for _ in range(RUNS):
        pair = []
        for words in (EMPTY, command):
            start = time.perf_counter()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=settings)
            pair.append(time.perf_counter() - start)
        times.append(pair)
    seconds = [mine for _, mine in times]
    return {
        "seconds": round(median(seconds), 4),
        "range": [round(min(seconds), 4), round(max(seconds), 4)],
        "ratio": round(median(mine / empty for empty, mine in times), 2),
    }


def table(cells: dict[str, Any]) -> str:
    rows = []
    for name, row in cells.items():
        low, high = (1000 * x for x in row["range"])
        rows.append([f"`{name}`", f"{1000 * row['seconds']:.0f} ({low:.0f}–{high:.0f})", f"{row['ratio']:.1f}"])
    head = ["command", "ms (range)", "times `python -c pass`"]
    return f"Medians of {RUNS} runs in turns.\n\n{markdown(head, rows)}"


BENCHMARK = Benchmark(
    "performance/startup", lambda asked: {name: {"command": command} for name, command in ROWS.items()}, measure,
    inside="rows", about=lambda cells: {"runs": RUNS},
    sections=(Section("lab/performance.md", "startup", table),),
    ratios=lambda row: {"times an empty interpreter": row["ratio"]},
)  # fmt: skip
