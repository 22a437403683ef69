"""Speed and peak memory of every merge method that needs no data, on a 0.84-billion-parameter pair (Linux).

    python -m benchmarks.performance.methods            # what is missing in results/performance/methods.json
    python -m benchmarks.performance.methods wudi doge  # these alone

Two fine-tunes of a random Llama in bfloat16 and their base, as `benchmarks.performance.merging` makes them, merged as
they are (``--no-align``) by the method's defaults, once each, with the inputs in the page cache. Methods that take
singular values or iterate over whole matrices run on a pair of 0.21 billion parameters of half the width in their place
(`MATRICES`); what is not done after `LIMITS` is stopped, and its row says so. What was measured is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.merging import FOLDER, MODEL, MODELS, ROOT
from benchmarks.performance.processes import measure
from isomerge.fusion.registry import Method, method, methods

RESULTS = ROOT / "benchmarks" / "results" / "performance" / "methods.json"
SMALL = Llama(width=1024, neurons=2752, layers=12, heads=8, key_heads=8, vocabulary=32000)
MATRICES = ("iso_c", "iso_cts", "tsv_m", "svd_task_arithmetic", "knots", "wudi", "doge")
"""Methods whose time grows with the cube of a side: 64 times as long for a side four times as long."""
LIMITS = {"full": 360.0, "small": 360.0}
"""Processor seconds after which a run is stopped: three minutes of two cores."""
SAID = {"slerp": ("t=0.5",), "nearswap": ("t=0.001",)}
"""Parameters that have no default."""


def pair(kind: str) -> Path:
    """The folder of the base and its two fine-tunes, made once."""
    folder, model = (FOLDER, MODEL) if kind == "full" else (FOLDER / "small", SMALL)
    for number, (name, noise) in enumerate(MODELS.items()):
        write(folder / name, model, 0, shards=4, noise=noise, draw=number)
    return folder


def command(how: Method, folder: Path, out: Path, threads: int) -> Sequence[str]:
    """The merge, as a user calls it."""
    models = [str(folder / "one"), str(folder / "two")][: how.models[1]]
    base = ["--base-model", str(folder / "base")] if how.base == "required" else []
    said = [word for value in SAID.get(how.name, ()) for word in ("-p", value)]
    ours = str(Path(sys.executable).parent / "isomerge")
    return [
        ours,
        "merge",
        *models,
        "--method",
        how.name,
        *base,
        *said,
        "--no-align",
        "-j",
        str(threads),
        "-o",
        str(out),
    ]


def row(how: Method, kind: str, threads: int) -> dict[str, Any]:
    """One run of a method."""
    folder, out = pair(kind), FOLDER / "out" / how.name
    shutil.rmtree(out, ignore_errors=True)
    inputs = [folder / name for name in MODELS]
    try:
        found = measure(
            command(how, folder, out, threads), threads=threads, log=FOLDER / "out" / f"{how.name}.log",
            inputs=inputs, limit=LIMITS[kind],
        )  # fmt: skip
    finally:
        for left in (FOLDER / "out").glob(f"*{how.name}*"):
            if left.is_dir():
                shutil.rmtree(left)
    return {"pair": kind, **found}


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="these anew; without any, all that were not measured")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
    found |= {"threads": asked.threads, "cores": os.cpu_count()}
    found |= {"parameters": {"full": MODEL.parameters, "small": SMALL.parameters}}
    free = [name for name, how in methods().items() if how.built_in and not (how.statistics or how.forward)]
    missing = sorted((name for name in free if name not in found["rows"]), key=lambda name: name in MATRICES)
    for name in asked.methods or missing:
        found["rows"][name] = row(method(name), "small" if name in MATRICES else "full", asked.threads)
        print(name, found["rows"][name], flush=True)
        RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
