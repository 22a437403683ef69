"""Time and memory of alignment and merging against depth, width and heads, and one large pair (Linux).

Pairs are fine-tunes of one random Llama in bfloat16, apart by a tenth of its weights' standard deviation. `--large`
adds a pair of layers of Llama-3-8B's shape, of about so many billions of parameters each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, ROOT, Benchmark, Cells, Section, markdown
from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.processes import PROGRAM, measure

MODEL = Llama(width=1024, neurons=2816, layers=4, heads=16, key_heads=4, vocabulary=4096)
BILLION = Llama(width=4096, neurons=14336, layers=1, heads=32, key_heads=8, vocabulary=128256)
LIMITS = ("0.7GB", "1GB")
NOISE = 0.1


def measured(model: Llama, command: str, options: Sequence[str] = (), *, related: bool = True) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=DATA) as temporary:
        root = Path(temporary)
        shards = max(1, model.parameters // 2_000_000_000)
        anchor, source = (
            write(root / str(k), model, 0 if related else k, shards=shards, noise=NOISE, draw=k) for k in (1, 2)
        )
        models = [str(source), "--onto", str(anchor)] if command == "align" else [str(source), str(anchor)]
        words = [PROGRAM, command, "--align", *models, "-o", str(root / "out"), *options]
        row = measure([*words, "--quiet"], threads=1, log=root / "log", inputs=[anchor, source])
        if command == "merge":  # what the program itself expects
            shutil.rmtree(root / "out")
            dry = [*words, "--dry-run", "--json", str(root / "dry.json"), "--quiet"]
            measure(dry, threads=1, log=root / "dry.log")
            row["dry_run"] = json.loads((root / "dry.json").read_text()).get("estimate", {})
    return {"parameters": model.parameters, **row}


def large(billions: float) -> Llama:
    """A model of whole layers of Llama-3-8B's, of about so many parameters.

    Raises:
        SystemExit: the disk is too full for a pair and its merge.
    """
    empty = replace(BILLION, layers=0).parameters
    model = replace(BILLION, layers=max(1, round((billions * 1e9 - empty) / (BILLION.parameters - empty))))
    need, free = 6.2 * model.parameters, shutil.disk_usage(ROOT).free
    if need > free:
        raise SystemExit(f"a pair and its merge take {need / 1e9:.0f} GB, but {free / 1e9:.0f} GB are free")
    return model


def cells(asked: argparse.Namespace) -> Cells:
    """Curves over depth, width and heads, and what else is asked of one of them."""
    shapes = {f"depth {depth}": replace(MODEL, layers=depth) for depth in (4, 8, 16)}
    shapes |= {
        f"width {width}": replace(
            MODEL, width=width, neurons=width * 11 // 4, heads=width // 64, key_heads=width // 256
        )
        for width in (512, 1024, 2048)
    }
    shapes |= {f"heads {heads}": replace(MODEL, heads=heads, key_heads=heads // 4) for heads in (8, 16, 32)}
    rows: dict[str, dict[str, Any]] = {
        f"{name}, {command}": {"model": model, "command": command}
        for name, model in shapes.items()
        for command in ("align", "merge")
    }
    deep = {"model": shapes["depth 16"], "command": "merge"}
    rows["width 1024, merge, unrelated"] = {"model": MODEL, "command": "merge", "related": False}
    for limit in LIMITS:
        rows[f"depth 16, merge, -j 2 --max-memory {limit}"] = {
            **deep,
            "options": ("-j", "2", "--max-memory", limit),
        }
    rows["depth 16, merge, -j 2"] = {**deep, "options": ("-j", "2")}
    if asked.large:
        model = large(asked.large)
        name = f"large, {model.parameters / 1e9:.1f} billion, merge"
        rows[name] = {"model": model, "command": "merge", "options": ("-j", "1")}
    return rows


def table(cells: dict[str, Any]) -> str:
    rows = []
    for name, row in cells.items():
        expected = row.get("dry_run", {}).get("memory")
        figures = [f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}", f"{row['peak_anonymous_bytes'] / 1e6:.0f}"]
        rows.append([name, f"{row['parameters'] / 1e6:.0f}", *figures, f"{expected / 1e6:.0f}" if expected else ""])
    head = [
        "row", "million parameters", "seconds", "processor seconds", "memory (MB)",
        "estimate of `--dry-run` (MB)",
    ]  # fmt: skip
    return (
        "Pairs of Llama-shaped models in bfloat16, a tenth of the weights' standard deviation apart (width 1024, 4 "
        "layers, 16 heads where the row does not say otherwise), default spaces, one thread unless `-j` is said, "
        f"one run each.\n\n{markdown(head, rows)}"
    )


BENCHMARK = Benchmark(
    "performance/scaling", cells, measured, inside="",
    sections=(Section("lab/performance.md", "scaling", table),),
    options=lambda parser: parser.add_argument("--large", type=float, metavar="BILLIONS", help="one more pair"),
)  # fmt: skip
