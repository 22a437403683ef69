"""Where the time of an aligned merge goes: the 0.84-billion-parameter pair of `merging`, one thread.

Processor seconds by the profiler of Python. The floor is what no match can do without: both models read, one
cross-Gram per space, distances before and after, the source moved, and the result fused and written.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import shutil
import time
from typing import Any

import torch

import isomerge
from benchmarks.harness import Benchmark, Section, markdown
from benchmarks.performance.merging import FOLDER, make_models, write_recipe

PARTS = {
    "both models read and widened": (("unit_work.py", "_load"),),
    "cross-Grams": (("gram.py", "cross_grams"),),
    "distances before and after": (
        ("distances.py", "squared_distance"),
        ("distances.py", "squared_distance_and_norm"),
    ),
    "the source moved": (("alignment.py", "applied"),),
    "fused and written": (("fusing.py", "fuse"), ("streaming.py", "_write")),
    "canonical gauges: self-Grams, roots, both models moved there": (("balance.py", "canonical_gauge"),),
    "neurons: sketch, nearest, exact distances": (("sketch.py", "solve_neurons"),),
    "heads: bounds, polar factors": (("nested.py", "_base"),),
}
"""Functions by file and name whose time, with all that they call, is a part; none calls another one, but for
`GAUGES`."""
GAUGES = "balance.py"
"""What moves models for a gauge counts there."""
FLOOR = tuple(PARTS)[:5]


def seconds_of(stats: pstats.Stats, file: str, name: str) -> float:
    """Processor seconds of a function and what it calls, where it is not called for a gauge."""
    rows: Any = stats.stats  # type: ignore[attr-defined]
    return sum(
        row[3]
        - sum(of[3] for (caller, _, _), of in row[4].items() if name == "applied" and caller.endswith(GAUGES))
        for (path, _, function), row in rows.items()
        if function == name and path.endswith(f"/{file}")
    )


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    make_models()
    out = FOLDER / "out" / "split"
    shutil.rmtree(out, ignore_errors=True)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(isomerge.merge, write_recipe("linear", align=True), out=out)
    shutil.rmtree(out.parent)
    stats = pstats.Stats(profile)
    parts = {name: round(sum(seconds_of(stats, *f) for f in functions), 2) for name, functions in PARTS.items()}
    total = round(stats.total_tt, 2)  # type: ignore[attr-defined]
    parts["all else"] = round(total - sum(parts.values()), 2)
    floor = round(sum(parts[name] for name in FLOOR), 2)
    return {"total": total, "floor": floor, "parts": parts, "cores": os.cpu_count()}


def table(cells: dict[str, Any]) -> str:
    (row,) = cells.values()
    total = row["total"]
    rows = [[name, f"{seconds:.1f}", f"{seconds / total:.0%}"] for name, seconds in row["parts"].items()]
    return (
        f"The same pair aligned (default spaces) and merged in one thread: {total:.0f} processor seconds.\n\n"
        f"{markdown(['part', 'processor seconds', 'share'], rows)}\n\n"
        f"The first five are what no match can do without, {row['floor']:.1f} s: all of it takes "
        f"{total / row['floor']:.1f} times as long."
    )


BENCHMARK = Benchmark(
    "performance/split", lambda asked: {"linear, aligned": {}}, measure, inside="merges",
    sections=(Section("lab/performance.md", "split", table),),
    ratios=lambda row: {"times the floor": row["total"] / row["floor"]},
)  # fmt: skip
