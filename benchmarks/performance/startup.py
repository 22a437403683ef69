"""How long the command line takes to answer, against an empty interpreter.

python -m benchmarks.performance.startup      # writes results/performance/startup.json; a minute
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.performance.processes import environment

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "performance" / "startup.json"
PROGRAM = str(Path(sys.executable).parent / "isomerge")
ROWS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "isomerge --help": (PROGRAM, "--help"),
    "isomerge merge --help": (PROGRAM, "merge", "--help"),
    "import isomerge": (sys.executable, "-c", "import isomerge"),
    "import torch": (sys.executable, "-c", "import torch"),
}
RUNS = 15


def main() -> None:
    """All rows in turns; medians, and medians of the ratios to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in ROWS}
    settings = environment(os.cpu_count() or 1)
    for _ in range(RUNS):
        for name, command in ROWS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=settings)
            seconds[name].append(time.perf_counter() - start)
    empty = seconds["python -c pass"]
    found: dict[str, Any] = {}
    for name, here in seconds.items():
        ratios = [a / b for a, b in zip(here, empty, strict=True)]
        found[name] = {"seconds": round(median(here), 4), "range": [round(min(here), 4), round(max(here), 4)]}
        found[name]["ratio"] = round(median(ratios), 2)
        print(name, found[name])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"runs": RUNS, "rows": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
