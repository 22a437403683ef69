"""A learned match of large models: the same on a device as on the CPU, its seconds and its memory.

    python -m benchmarks.gpu                                   # on the GPU: every row that is missing, largest last
    python -m benchmarks.gpu --device cpu                      # the same on the CPU
    python -m benchmarks.gpu --device cpu --only 'cpu, 1b'     # one row, anew

Random Llama-shaped fine-tunes in bfloat16 are matched inside their layers and learned for a few steps without labels:
in bfloat16, layers computed once more (``--gradient-checkpointing``), no matching by activations before it. What is
told is the seconds of a step, and the peaks of the process's anonymous memory and of the device's. Every row is a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, Benchmark, Cells
from benchmarks.performance.llamas import Llama, in_proportion, write, write_tokens
from benchmarks.performance.processes import measure

CPU = "cpu"


@dataclass(frozen=True)
class Row:
    """One pair."""

    model: Llama
    tokens: dict[str, tuple[int, int]]
    """Examples of a step and their length, on the CPU and on a device."""
    lean: bool = True
    """In bfloat16, with layers computed once more."""


FEW, MANY = (2, 64), (16, 128)
ROWS = {
    "0.09b plain": Row(in_proportion(1024, 8, 2048), {CPU: FEW, "cuda": MANY}, lean=False),
    "0.09b": Row(in_proportion(1024, 8, 2048), {CPU: FEW, "cuda": MANY}),
    "1b": Row(in_proportion(2048, 20, 32000), {CPU: FEW, "cuda": MANY}),
    "3b": Row(in_proportion(3072, 28, 32000), {"cuda": MANY}),
}
SAME = Row(in_proportion(256, 4, 512), {CPU: (8, 64), "cuda": (8, 64)}, lean=False)
"""The pair that is learned on the CPU and on the device."""
STEPS = 3
SAME_STEPS = 20
CLOSE = 2e-2
"""Relative: losses of the same steps in another order of sums, after as many steps."""


def learned(name: str, device: str, folder: Path) -> dict[str, Any]:
    """Learn in this process: seconds by step, peaks, and the losses of the path."""
    import torch

    import isomerge

    row, steps = (SAME, SAME_STEPS) if name == "same" else (ROWS[name], STEPS)
    count, length = row.tokens["cuda" if device != CPU else CPU]
    models = [write(folder / f"{row.model.width}-{k}", row.model, 0, noise=0.1, draw=k) for k in range(2)]
    data = write_tokens(folder / "data.jsonl", row.model, 12 * count, length)
    times: list[float] = []

    def observer(label: str, done: int, total: int) -> None:
        if label.startswith("learning"):
            times.append(time.perf_counter())

    lean: dict[str, Any] = {"gradient_checkpointing": True, "precision": "bfloat16"}
    wide: dict[str, Any] = {"dtype": "float32"}  # many steps stretch random models by more than bfloat16 carries
    _, report = isomerge.align(
        models[1], onto=models[0], out=folder / "out", overwrite=True, align=True, spaces="default", rows=64,
        functional=False, learn=str(data), limit=None, length=length, steps=steps, batch_size=count, device=device,
        observer=observer, **(lean if row.lean else wide),
    )  # fmt: skip
    apart = [b - a for a, b in pairwise(times)]
    figures = {
        "parameters": row.model.parameters,
        "tokens": count * length,
        "seconds per step": round(statistics.median(apart), 2) if apart else None,
        "history": report["streams"][0]["learned"]["history"],
        "device": torch.cuda.get_device_name() if device != CPU else f"CPU, {torch.get_num_threads()} threads",
    }
    if device != CPU:
        figures["peak device bytes"] = torch.cuda.max_memory_allocated()
    return figures


def child(name: str, device: str) -> dict[str, Any]:
    (DATA / "gpu").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=DATA / "gpu"))
    program = "import json, pathlib, sys; from benchmarks.gpu import learned; name, device, folder = sys.argv[1:]; "
    program += "print(json.dumps(learned(name, device, pathlib.Path(folder))))"
    command = [sys.executable, "-c", program, name, device, str(folder)]
    log, threads = folder / "log", int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    try:
        cost = measure(command, threads=threads, log=log)
        figures = next(line for line in reversed(log.read_text().splitlines()) if line.startswith("{"))
        return {**json.loads(figures), "peak anonymous bytes": cost["peak_anonymous_bytes"]}
    except RuntimeError:
        return {"failed": log.read_text().strip().splitlines()[-1:]}
    finally:
        shutil.rmtree(folder)


def measured(name: str, device: str) -> dict[str, Any]:
    """One row; of the pair that both learn, whether a device learns what the CPU learns."""
    if name != "same":
        return child(name, device)
    rows = {where: child("same", where) for where in (CPU, device)}
    if failed := next((row for row in rows.values() if "failed" in row), None):
        return failed
    ends = {where: row["history"][-1]["midpoint"] for where, row in rows.items()}
    gap = abs(ends[device] - ends[CPU]) / max(abs(ends[CPU]), 1e-6)
    return {"midpoints": ends, "relative gap": gap, "same": gap <= CLOSE}


def cells(asked: argparse.Namespace) -> Cells:
    side, kind = ("cpu", CPU) if asked.device == CPU else ("gpu", "cuda")
    names = [name for name in ("same", *ROWS) if name == "same" or kind in ROWS[name].tokens]
    return {f"{side}, {n}": {"name": n, "device": asked.device} for n in names if n != "same" or side == "gpu"}


BENCHMARK = Benchmark(
    "gpu", cells, measured, inside="rows", options=lambda parser: parser.add_argument("--device", default="cuda")
)

if __name__ == "__main__":
    BENCHMARK.main()
