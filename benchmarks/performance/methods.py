"""Speed and peak memory of every merge method that needs no data, on a 0.84-billion-parameter pair (Linux).

Two fine-tunes of a random Llama in bfloat16 and their base, as `merging` makes them, merged as they are
(``--no-align``) by the method's defaults, once each, with the inputs in the page cache. Methods that take singular
values or iterate over whole matrices run on a pair of 0.21 billion parameters of half the width in their place
(`MATRICES`); what is not done after `LIMIT` is stopped, and its row says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
from typing import Any

from benchmarks.harness import Benchmark, Cells, Section, markdown
from benchmarks.performance.llamas import Llama
from benchmarks.performance.merging import FOLDER, MODEL, make_models
from benchmarks.performance.processes import PROGRAM, measure
from isomerge.fusion.registry import method, methods

SMALL = Llama(width=1024, neurons=2752, layers=12, heads=8, key_heads=8, vocabulary=32000)
MATRICES = ("iso_c", "iso_cts", "tsv_m", "svd_task_arithmetic", "knots", "wudi", "doge")
"""Methods whose time grows with the cube of a side: 64 times as long for a side four times as long."""
LIMIT = 360.0
"""Processor seconds after which a run is stopped: three minutes of two cores."""
PARAMETERS = {"slerp": ("t=0.5",), "nearswap": ("t=0.001",)}
"""Those that have no default."""
THREADS = 2


def measured(name: str, pair: str) -> dict[str, Any]:
    how = method(name)
    base, *models = make_models(*((FOLDER, MODEL) if pair == "full" else (FOLDER / "small", SMALL)))
    out = FOLDER / "out" / name
    shutil.rmtree(out, ignore_errors=True)
    words = ["--base-model", str(base)] if how.base == "required" else []
    words += [word for parameter in PARAMETERS.get(name, ()) for word in ("-p", parameter)]
    chosen = map(str, models[: how.models[1]])
    command = [
        PROGRAM, "merge", *chosen, "--method", name, *words, "--no-align", "-j", str(THREADS), "-o", str(out),
    ]  # fmt: skip
    log = FOLDER / "out" / f"{name}.log"
    try:
        return {"pair": pair, **measure(command, threads=THREADS, log=log, inputs=[base, *models], limit=LIMIT)}
    finally:
        for left in (FOLDER / "out").glob(f"*{name}*"):
            if left.is_dir():
                shutil.rmtree(left)


def table(cells: dict[str, Any]) -> str:
    whole = BENCHMARK.document()
    sizes = {pair: f"{count / 1e9:.2f}" for pair, count in whole["parameters"].items()}
    loads = [load for row in cells.values() for load in row["load"]]
    rows = []
    for name, row in sorted(sorted(cells.items()), key=lambda cell: (cell[1]["pair"], cell[1]["cpu_seconds"])):
        busy = f"stopped after {row['cpu_seconds']:.0f}" if row.get("stopped") else f"{row['cpu_seconds']:.0f}"
        memory = f"{row['peak_anonymous_bytes'] / 1e6:.0f}"
        rows.append([f"`{name}`", sizes[row["pair"]], busy, f"{row['seconds']:.0f}", memory])
    return (
        f"Two fine-tunes of a random Llama in bfloat16 and their base, merged as they are (`--no-align`) by each "
        f"method's defaults, {whole['threads']} threads, one run each, on a machine of {whole['cores']} cores that "
        f"others used as well (load {min(loads):.1f} to {max(loads):.1f}): processor seconds count, and wall seconds "
        f"are an upper bound. Methods of whole matrices have a pair of {sizes['small']} billion parameters.\n\n"
        + markdown(["method", "billion parameters", "processor seconds", "seconds", "memory (MB)"], rows)
    )


def cells(asked: argparse.Namespace) -> Cells:
    """Every built-in method that reads neither statistics nor data, those of whole matrices last."""
    free = [name for name, how in methods().items() if how.built_in and not (how.statistics or how.forward)]
    ordered = sorted(free, key=lambda name: name in MATRICES)
    return {name: {"name": name, "pair": "small" if name in MATRICES else "full"} for name in ordered}


PARAMETERS_OF = {"full": MODEL.parameters, "small": SMALL.parameters}
BENCHMARK = Benchmark(
    "performance/methods", cells, measured, inside="rows",
    about=lambda cells: {"threads": THREADS, "cores": os.cpu_count(), "parameters": PARAMETERS_OF},
    sections=(Section("lab/performance.md", "methods", table),),
)  # fmt: skip
