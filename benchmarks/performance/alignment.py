"""The time of an alignment against the seed paper's algorithm written plainly (`benchmarks.performance.naive`), on
one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.alignment            # writes results/performance/alignment.json and the table
    OMP_NUM_THREADS=1 python -m benchmarks.performance.alignment --shapes roberta-base --cases related --repeats 5

Both sides take turns, in one process (tensors in memory to tensors in memory) or each in processes of its own
(folder to folder, start-up included), so that other work on the machine slows them alike: the ratios count, not the
seconds. Measured are the wall's seconds and the processor's (user and system), of which other work takes none. What
is minimised, the squared distance of all matched tensors, is compared as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.performance import naive
from benchmarks.performance.pairs import CASES, SHAPES, Shape, config_of, layers_of, make_pair, write_pair
from benchmarks.performance.processes import environment, memory_at_hand

RESULTS = Path(__file__).parents[1] / "results" / "performance" / "alignment.json"
PAGE = Path(__file__).parents[2] / "docs" / "lab" / "performance.md"
MARKS = "<!-- performance-alignment: begin -->", "<!-- performance-alignment: end -->"


def ours(
    source: dict[str, Tensor], anchor: dict[str, Tensor], config: dict[str, Any], spaces: str
) -> dict[str, Tensor]:
    """Every unit read, matched, moved and measured as `isomerge align` does it; the moved tensors by name.

    As there, what is read is not copied (a command reads pages of its files) and the libraries' objects are not
    looked at by the garbage collector.
    """
    from isomerge.checkpoint.in_memory import MemoryCheckpoint, in_memory
    from isomerge.models.recognised import recognise, working_dtype
    from isomerge.models.unit_plan import make_plan
    from isomerge.run.pipeline import libraries_frozen
    from isomerge.solve.pairs.pair import PairSolver

    a, b = (recognise(in_memory(tensors, config)) for tensors in (anchor, source))
    plan = make_plan(b, [a], spaces)
    solver = PairSolver(a, b, plan, working_dtype([a, b]), guard=True)
    given = {id(model.checkpoint): tensors for model, tensors in ((a, anchor), (b, source))}
    found: dict[str, Tensor] = {}
    with (
        patch.object(MemoryCheckpoint, "_read", lambda self, info: given[id(self)][info.name]),
        libraries_frozen(),
    ):
        for unit in plan.units:
            _, moved = solver.solve(unit, solver.load(a, unit), solver.load(b, unit))
            found |= {b.names[name]: part for block, t in moved.items() for name, part in block.split(t)}
    return found


Seconds = dict[str, dict[str, list[float]]]
"""By clock (``wall``, ``processor``) and side, one per round."""


def seconds_of_both() -> Seconds:
    """Nothing measured yet."""
    return {clock: {"naive": [], "isomerge": []} for clock in ("wall", "processor")}


def timed(work: Callable[[], Any], seconds: Seconds, side: str) -> Any:
    """The result; its seconds are added, those of the processor with those of processes that ended meanwhile."""
    memory_at_hand()
    before, start = os.times(), time.perf_counter()
    found = work()
    wall, after = time.perf_counter() - start, os.times()
    seconds["wall"][side].append(round(wall, 3))
    seconds["processor"][side].append(round(sum(after[:4]) - sum(before[:4]), 3))
    return found


def in_process(shape: Shape, case: str, spaces: str, repeats: int) -> dict[str, Any]:
    """Both sides in turns on one pair in memory; one round before the first one that counts warms both up."""
    config = config_of(shape)
    source, anchor = make_pair(shape, case)
    layers, target = layers_of(source, config), layers_of(anchor, config)
    small = Shape(shape.model_type, 1, shape.width, shape.heads, shape.neurons)
    ours(*make_pair(small, case), config_of(small), spaces)
    seconds, gaps = seconds_of_both(), dict[str, float]()
    for _ in range(repeats):
        matched = timed(lambda: naive.match(layers, target, shape.heads), seconds, "naive")
        gaps["naive"] = naive.squared_distance(matched, target)
        moved = timed(lambda: ours(source, anchor, config, spaces), seconds, "isomerge")
        gaps["isomerge"] = naive.squared_distance(layers_of(moved, config), target)
    return {"seconds": seconds, "squared_distance": {"before": naive.squared_distance(layers, target), **gaps}}


def as_processes(shape: Shape, case: str, spaces: str, repeats: int) -> dict[str, Any]:
    """Both sides in turns as commands, from folders to a folder."""
    from safetensors.torch import load_file

    settings = environment(1)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        source, anchor = write_pair(shape, case, root)
        command = str(Path(sys.executable).parent / "isomerge")
        commands = {
            "naive": [sys.executable, "-m", "benchmarks.performance.naive", str(source), str(anchor)],
            "isomerge": [
                command,
                "align",
                "--align",
                "-q",
                str(source),
                "--onto",
                str(anchor),
                "--spaces",
                spaces,
                "-o",
            ],
        }
        seconds = seconds_of_both()
        config, target = config_of(shape), load_file(anchor / "model.safetensors")
        gaps = {"before": load_file(source / "model.safetensors")}
        for _ in range(repeats):
            for name, words in commands.items():
                out = root / name
                shutil.rmtree(out, ignore_errors=True)
                os.sync()  # nobody pays for what was written before
                run = partial(subprocess.run, [*words, str(out)], check=True, env=settings, capture_output=True)
                timed(run, seconds, name)
                gaps[name] = load_file(out / "model.safetensors")
        distances = {
            name: naive.squared_distance(layers_of(tensors, config), layers_of(target, config))
            for name, tensors in gaps.items()
        }
    return {"seconds": seconds, "squared_distance": distances}


def row_of(name: str, layers: int, case: str, spaces: str, how: str, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the results: medians, their ratios round by round by either clock, and the relative difference of
    the objective."""
    ratios = {
        clock: sorted(round(a / b, 2) for a, b in zip(took["naive"], took["isomerge"], strict=True))
        for clock, took in found["seconds"].items()
    }
    gap = found["squared_distance"]
    return {
        "shape": name, "layers": layers, "case": case, "spaces": spaces, "how": how,
        "median_seconds": {side: round(median(took), 3) for side, took in found["seconds"]["wall"].items()},
        "ratios": ratios,
        "objective_difference": gap["isomerge"] / gap["naive"] - 1, **found,
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """The table of the documentation."""
    lines = [
        "| model | pair | `--spaces` | from, to | plain (s) | isomerge (s) | times as fast (range) | by "
        "processor time | squared distance against plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in found["rows"]:
        seconds = r["median_seconds"]
        wall, processor = (
            f"**{median(ratios):.1f}** ({ratios[0]:.1f} to {ratios[-1]:.1f})" for ratios in r["ratios"].values()
        )
        lines.append(
            f"| {r['shape']} | {r['case']} | `{r['spaces']}` | {r['how']} | {seconds['naive']:.2f} | "
            f"{seconds['isomerge']:.2f} | "
            f"{wall} | {processor} | {r['objective_difference']:+.0e} |"
        )
    lines.append("")
    lines.append(
        f"Medians of at least {min(len(r['ratios']['wall']) for r in found['rows'])} rounds in turns, one "
        f"thread on a shared machine of {found['cores']} cores, torch {found['torch']}."
    )
    return "\n".join(lines)


def write_table(text: str) -> None:
    """Replace what is between the marks of the page."""
    before, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


def main() -> None:
    """Measure; a row replaces the one of the same setting, so that parts can be measured again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--spaces", nargs="+", default=["paper"])
    parser.add_argument("--how", nargs="+", choices=("memory", "processes"), default=["memory", "processes"])
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    old = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {(r["shape"], r["case"], r["spaces"], r["how"]): r for r in old}
    for name in chosen.shapes:
        shape = SHAPES[name]
        for case in chosen.cases:
            for spaces in chosen.spaces:
                for how in chosen.how:
                    measure = in_process if how == "memory" else as_processes
                    found = measure(shape, case, spaces, chosen.repeats)
                    row = row_of(name, shape.layers, case, spaces, how, found)
                    rows[name, case, spaces, how] = row
                    print(
                        {
                            k: row[k]
                            for k in (
                                "shape",
                                "case",
                                "spaces",
                                "how",
                                "median_seconds",
                                "ratios",
                                "objective_difference",
                            )
                        },
                        flush=True,
                    )
    order = {key: number for number, key in enumerate((*SHAPES, *CASES, "memory", "processes"))}
    found = {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "rows": sorted(
            rows.values(),
            key=lambda r: (order[r["shape"]], order[r["case"]], r["spaces"] != "paper", order[r["how"]]),
        ),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    if PAGE.exists():
        write_table(table(found))


if __name__ == "__main__":
    main()
