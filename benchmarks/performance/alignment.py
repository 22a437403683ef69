"""The time of an alignment against the seed paper's algorithm written plainly (`naive`), on one thread.

Both sides take turns, in one process (tensors in memory to tensors in memory) or each in processes of its own
(folder to folder, start-up included), so that other work on the machine slows them alike: the ratios count, not the
seconds. Measured are the wall's seconds and the processor's (user and system), of which other work takes none. What
is minimised, the squared distance of all matched tensors, is compared as well. `--repeats` says how many rounds.
"""

from __future__ import annotations

import argparse
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

from benchmarks.harness import Benchmark, Cells, Section, markdown
from benchmarks.performance import naive
from benchmarks.performance.pairs import CASES, SHAPES, Shape, config_of, layers_of, make_pair, write_pair
from benchmarks.performance.processes import PROGRAM, environment, memory_at_hand

LARGEST = "deberta-v3-large"


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
    stored = {id(model.checkpoint): tensors for model, tensors in ((a, anchor), (b, source))}
    matched: dict[str, Tensor] = {}
    with (
        patch.object(MemoryCheckpoint, "_read", lambda self, info: stored[id(self)][info.name]),
        libraries_frozen(),
    ):
        for unit in plan.units:
            _, moved = solver.solve(unit, solver.load(a, unit), solver.load(b, unit))
            matched |= {b.names[name]: part for block, t in moved.items() for name, part in block.split(t)}
    return matched


Seconds = dict[str, dict[str, list[float]]]
"""By clock (``wall``, ``processor``) and side, one per round."""


def seconds_of_both() -> Seconds:
    return {clock: {"naive": [], "isomerge": []} for clock in ("wall", "processor")}


def timed(work: Callable[[], Any], seconds: Seconds, side: str) -> Any:
    """The result; its seconds are added, those of the processor with those of processes that ended meanwhile."""
    memory_at_hand()
    before, start = os.times(), time.perf_counter()
    outcome = work()
    wall, after = time.perf_counter() - start, os.times()
    seconds["wall"][side].append(round(wall, 3))
    seconds["processor"][side].append(round(sum(after[:4]) - sum(before[:4]), 3))
    return outcome


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
        commands = {
            "naive": [sys.executable, "-m", "benchmarks.performance.naive", str(source), str(anchor)],
            "isomerge": [PROGRAM, "align", "--align", "-q", str(source), "--onto", str(anchor), "--spaces", spaces, "-o"],
        }  # fmt: skip
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


def measured(shape: str, case: str, spaces: str, how: str, repeats: int) -> dict[str, Any]:
    """Medians, their ratios round by round by either clock, and the relative difference of the objective."""
    torch.set_num_threads(1)
    run = in_process if how == "memory" else as_processes
    rounds = run(SHAPES[shape], case, spaces, repeats)
    ratios = {
        clock: sorted(round(a / b, 2) for a, b in zip(took["naive"], took["isomerge"], strict=True))
        for clock, took in rounds["seconds"].items()
    }
    gap = rounds["squared_distance"]
    return {
        "shape": shape, "layers": SHAPES[shape].layers, "case": case, "spaces": spaces, "how": how,
        "median_seconds": {side: round(median(took), 3) for side, took in rounds["seconds"]["wall"].items()},
        "ratios": ratios,
        "objective_difference": gap["isomerge"] / gap["naive"] - 1, **rounds,
    }  # fmt: skip


def table(cells: dict[str, Any]) -> str:
    order = {key: number for number, key in enumerate((*SHAPES, *CASES, "memory", "processes"))}
    ordered = sorted(
        cells.values(), key=lambda r: (order[r["shape"]], order[r["case"]], r["spaces"] != "paper", order[r["how"]])
    )
    rows = []
    for r in ordered:
        wall, processor = (
            f"**{median(ratios):.1f}** ({ratios[0]:.1f} to {ratios[-1]:.1f})" for ratios in r["ratios"].values()
        )
        plain, mine = (f"{r['median_seconds'][side]:.2f}" for side in ("naive", "isomerge"))
        gap = f"{r['objective_difference']:+.0e}"
        rows.append([r["shape"], r["case"], f"`{r['spaces']}`", r["how"], plain, mine, wall, processor, gap])
    head = [
        "model", "pair", "`--spaces`", "from, to", "plain (s)", "isomerge (s)", "times as fast (range)", "by processor time",
        "squared distance against plain",
    ]  # fmt: skip
    whole = BENCHMARK.document()
    return (
        f"{markdown(head, rows)}\n\n"
        f"Medians of at least {min(len(r['ratios']['wall']) for r in ordered)} rounds in turns, one "
        f"thread on a shared machine of {whole['cores']} cores, torch {whole['torch']}."
    )


def cells(asked: argparse.Namespace) -> Cells:
    """Every model and kind of pair, in memory and as commands; of the largest one pair, in memory."""
    chosen = [(shape, case, how) for shape in SHAPES for case in CASES for how in ("memory", "processes")]
    return {
        f"{shape}, {case}, {asked.spaces}, {how}": {
            "shape": shape, "case": case, "spaces": asked.spaces, "how": how, "repeats": asked.repeats
        }
        for shape, case, how in chosen
        if shape != LARGEST or (case, how) == ("related", "memory")
    }  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, help="rounds of an alignment")
    parser.add_argument("--spaces", default="paper", help="that an alignment matches")


BENCHMARK = Benchmark(
    "performance/alignment", cells, measured, inside="rows",
    about=lambda cells: {"torch": torch.__version__, "cores": os.cpu_count(), "machine": platform.machine()},
    sections=(Section("lab/performance.md", "performance-alignment", table),),
    ratios=lambda row: {"share of the plain algorithm's time": 1 / median(row["ratios"]["processor"])},
    said=lambda row: f"{row['median_seconds']}, {row['ratios']}, {row['objective_difference']:+.0e}",
    options=options,
)  # fmt: skip
