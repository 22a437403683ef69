"""A learned match of large models: the same on a device as on the CPU, its seconds and its memory.

    python -m benchmarks.gpu                    # on the GPU: every row that is missing, largest last
    python -m benchmarks.gpu --device cpu       # the same on the CPU
    python -m benchmarks.gpu --row 1b           # one row, anew

Random Llama-shaped fine-tunes in bfloat16 are matched inside their layers and learned for a few steps without labels:
in bfloat16, layers computed once more (``--gradient-checkpointing``), no matching by activations before it. What is
told is the seconds of a step, and the peaks of the process's anonymous memory and of the device's. Every row is a
process of its own, and results are written after each, so that pieces of ten minutes do. Writes results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.processes import measure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
DATA = ROOT / "benchmarks" / "data" / "gpu"
CPU = "cpu"


@dataclass(frozen=True)
class Row:
    """One pair."""

    model: Llama
    tokens: dict[str, tuple[int, int]]
    """Examples of a step and their length, on the CPU and on a device."""
    lean: bool = True
    """In bfloat16, with layers computed once more."""


def llama(width: int, layers: int, vocabulary: int) -> Llama:
    """Sizes in Llama's proportions."""
    return Llama(width, width * 11 // 4, layers, width // 64, max(width // 256, 1), vocabulary)


FEW, MANY = (2, 64), (16, 128)
ROWS = {
    "0.09b plain": Row(llama(1024, 8, 2048), {CPU: FEW, "cuda": MANY}, lean=False),
    "0.09b": Row(llama(1024, 8, 2048), {CPU: FEW, "cuda": MANY}),
    "1b": Row(llama(2048, 20, 32000), {CPU: FEW, "cuda": MANY}),
    "3b": Row(llama(3072, 28, 32000), {"cuda": MANY}),
}
SAME = Row(llama(256, 4, 512), {CPU: (8, 64), "cuda": (8, 64)}, lean=False)
"""The pair that is learned on the CPU and on the device."""
STEPS = 3
SAME_STEPS = 20
CLOSE = 2e-2
"""Relative: losses of the same steps in another order of sums, after as many steps."""


def learned(row: Row, device: str, steps: int, folder: Path) -> dict[str, Any]:
    """Learn in this process: seconds by step, peaks, and the losses of the path."""
    import torch

    import isomerge

    count, length = row.tokens["cuda" if device != CPU else CPU]
    models = [write(folder / f"{row.model.width}-{k}", row.model, 0, noise=0.1, draw=k) for k in range(2)]
    rng, data = random.Random(0), folder / "data.jsonl"
    rows = [{"input_ids": [rng.randrange(row.model.vocabulary) for _ in range(length)]} for _ in range(12 * count)]
    data.write_text("".join(json.dumps(one) + "\n" for one in rows))
    times: list[float] = []

    def told(what: str, done: int, total: int) -> None:
        if what.startswith("learning"):
            times.append(time.perf_counter())

    lean: dict[str, Any] = {"gradient_checkpointing": True, "precision": "bfloat16"}
    wide: dict[str, Any] = {"dtype": "float32"}  # many steps stretch random models by more than bfloat16 carries
    _, report = isomerge.align(
        models[1], onto=models[0], out=folder / "out", overwrite=True, align=True, spaces="default", rows=64,
        functional=False, learn=str(data), limit=None, length=length, steps=steps, batch_size=count, device=device,
        observer=told, **(lean if row.lean else wide),
    )  # fmt: skip
    apart = [b - a for a, b in pairwise(times)]
    found = {
        "parameters": row.model.parameters,
        "tokens": count * length,
        "seconds per step": round(statistics.median(apart), 2) if apart else None,
        "history": report["streams"][0]["learned"]["history"],
        "device": torch.cuda.get_device_name() if device != CPU else f"CPU, {torch.get_num_threads()} threads",
    }
    if device != CPU:
        found["peak device bytes"] = torch.cuda.max_memory_allocated()
    return found


def child(name: str, device: str) -> dict[str, Any]:
    """One row in a process of its own."""
    DATA.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=DATA))
    command = [sys.executable, "-m", "benchmarks.gpu", "--row", name, "--device", device, "--in", str(folder)]
    log, threads = folder / "log", int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    try:
        cost = measure(command, threads=threads, log=log)
        found = next(line for line in reversed(log.read_text().splitlines()) if line.startswith("{"))
        return {**json.loads(found), "peak anonymous bytes": cost["peak_anonymous_bytes"]}
    except RuntimeError:
        return {"failed": log.read_text().strip().splitlines()[-1:]}
    finally:
        shutil.rmtree(folder)


def same(device: str) -> dict[str, Any]:
    """Whether a device learns what the CPU learns."""
    found = {where: child("same", where) for where in dict.fromkeys((CPU, device))}
    if failed := next((x for x in found.values() if "failed" in x), None):
        return failed
    ends = {where: x["history"][-1]["midpoint"] for where, x in found.items()}
    gap = abs(ends[device] - ends[CPU]) / max(abs(ends[CPU]), 1e-6)
    return {"midpoints": ends, "relative gap": gap, "same": gap <= CLOSE}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--row", choices=[*ROWS, "same"])
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        row, steps = (SAME, SAME_STEPS) if asked.row == "same" else (ROWS[asked.row], STEPS)
        print(json.dumps(learned(row, asked.device, steps, asked.folder)))
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    here = results.setdefault("cpu" if asked.device == CPU else "gpu", {})
    kind = CPU if asked.device == CPU else "cuda"
    for name in [asked.row] if asked.row else ["same", *ROWS]:
        if (name in here and not asked.row) or (name in ROWS and kind not in ROWS[name].tokens):
            continue
        if name == "same" and kind == CPU:
            continue
        here[name] = same(asked.device) if name == "same" else child(name, asked.device)
        print(name, json.dumps(here[name]), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
