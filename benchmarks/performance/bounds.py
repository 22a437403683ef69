"""Whether `--max-memory` holds: the least that a command takes to begin, and the peak of its anonymous memory
(Linux).

Pairs are Llama-shaped fine-tunes of one random model in bfloat16, read on random tokens where models are run. Every
row has one thread and the least bound that it does not refuse.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA as FOLDER
from benchmarks.harness import Benchmark, Cells, Section, markdown
from benchmarks.performance.llamas import in_proportion, write, write_tokens
from benchmarks.performance.processes import environment, measure

PROGRAM = [sys.executable, "-m", "isomerge"]
SHAPES = {"run": ((512, 4), (512, 12)), "weights": ((512, 4), (1024, 8))}
"""Widths and depths, of pairs that are run and of those whose weights alone are looked at."""
TOKENS, EXAMPLES = 64, 64
FEW = ("--spaces", "default", "--rows", "64")
"""Matched inside layers alone, on few rows: what runs the models is measured, not how streams are matched."""
MODELS: dict[str, tuple[str, ...]] = {
    "align": (), "merge": (), "merge --no-align": ("--no-align",), "merge --spaces all": ("--spaces", "all"),
    "merge ties": ("--method", "ties", "--base-model", "BASE", "--parameter", "density=0.5"),
    "merge --anchor none": ("--anchor", "none"),
}  # fmt: skip
DATA: dict[str, tuple[str, ...]] = {
    "align --data --evidence activations": (
        "--data", "DATA", "--spaces", "default", "--no-functional", "--evidence", "activations",
    ),
    "align --data": ("--data", "DATA", "--spaces", "default"),
    "align --input-metric": ("--data", "DATA", "--no-functional", "--input-metric", *FEW),
    "align --search": ("--data", "DATA", "--search", "3", "--no-functional", *FEW),
    "align --learn": ("--learn", "DATA", "--steps", "2", *FEW),
    "align --learn --gradient-checkpointing": ("--learn", "DATA", "--steps", "2", "--gradient-checkpointing", *FEW),
    "merge --anchor none --learn": ("--anchor", "none", "--learn", "DATA", "--steps", "2", *FEW),
    "merge --repair": ("--no-align", "--repair", "DATA"),
    "merge regression": ("--no-align", "--method", "regression", "--data", "DATA", "--limit", "32"),
    "merge fisher": ("--no-align", "--method", "fisher", "--data", "DATA", "--limit", "8"),
    "merge regmean": ("--no-align", "--method", "regmean", "--data", "DATA"),
}  # fmt: skip
FORWARD: dict[str, tuple[str, ...]] = {
    "stats": ("--data", "DATA"),
    "stats --kinds fisher,kfac": ("--data", "DATA", "--kinds", "fisher,kfac", "--limit", "8"),
    "generate": ("--limit", "64"),
    "generate, long": ("--limit", "64", "--length", "256"),
    "barrier": ("--data", "DATA", "--points", "3"),
    "barrier, three models": ("--data", "DATA", "--grid", "2", "--spaces", "none"),
    "barrier --batch-size 64": ("--data", "DATA", "--points", "3", "--spaces", "none", "--batch-size", "64"),
}
"""Commands that run models and write none."""


def measured(name: str, options: Sequence[str], width: int, layers: int) -> dict[str, Any]:
    """What the program says that it needs, and what it takes within that."""
    model = in_proportion(width, layers, 2048)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        root = Path(folder)
        models = [write(root / str(k), model, 0, noise=0.1, draw=k) for k in range(3)]
        tokens = write_tokens(root / "data.jsonl", model, EXAMPLES, TOKENS)
        named = {"BASE": str(models[2]), "DATA": str(tokens)}
        word = name.split()[0].strip(",")
        given, out = _arguments(word, name, models, root)
        length = [] if "--length" in options else ["--length", str(TOKENS)]
        command = [*PROGRAM, word, *given, *length, *(named.get(o, o) for o in options)]
        need = _need(command)
        limit = ["--max-memory", f"{need / 1e9 + 0.005:.3f}GB"]
        _asked([*command, *limit, "--dry-run", "-q", "--json", str(root / "dry.json")])
        estimate = json.loads((root / "dry.json").read_text())["estimate"]["memory"]
        figures = measure([*command, *limit, "-q"], threads=1, log=root / "log", inputs=models[:2])
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
    kept = ("seconds", "cpu_seconds", "peak_anonymous_bytes", "load")
    return {"least": need, "estimate": estimate, **{key: figures[key] for key in kept}}


def _arguments(command: str, name: str, models: Sequence[Path], root: Path) -> tuple[list[str], Path]:
    """The models that a command is given, and where it writes."""
    several = [str(m) for m in models[: 3 if "three" in name else 2]]
    if command == "barrier":
        return several, root / "nothing"
    file = root / "out.safetensors"
    if command in ("stats", "generate"):
        return [*several[: 1 if command == "stats" else 2], "-o", str(file)], file
    onto = [str(models[1]), "--onto", str(models[0])] if command == "align" else several
    return [*onto, "-o", str(root / "out")], root / "out"


def _need(command: Sequence[str]) -> float:
    """The least bound, as the program tells it when it refuses."""
    said = _asked([*command, "--dry-run", "--max-memory", "1MB"])
    need = re.search(r"needs about ([\d.]+) GB", said)
    if need is None:
        raise RuntimeError(f"{' '.join(command)} did not refuse a bound of 1 MB: {said}")
    return 1e9 * float(need[1])


def _asked(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(1)).stderr


def cells(asked: argparse.Namespace) -> Cells:
    """What runs models, and what looks at weights alone, each on two shapes."""
    rows = [(shape, row) for kind in (DATA, FORWARD) for shape in SHAPES["run"] for row in kind.items()]
    rows += [(shape, row) for shape in SHAPES["weights"] for row in MODELS.items()]
    return {
        f"width {width}, depth {layers}: {name}": {
            "name": name, "options": options, "width": width, "layers": layers
        }
        for (width, layers), (name, options) in rows
    }  # fmt: skip


def table(cells: dict[str, Any]) -> str:
    rows = []
    for name, row in cells.items():
        least, peak = row["least"], row["peak_anonymous_bytes"]
        rows.append([name, f"{least / 1e6:.0f}", f"{peak / 1e6:.0f}", f"{peak / least:.0%}"])
    return (
        "Pairs as above with the least `--max-memory` that is not refused, 64 texts of 64 random tokens where "
        "models are run, inside layers alone (but for `--spaces all`), one thread, one run each.\n\n"
        + markdown(["row", "least bound (MB)", "peak of anonymous memory (MB)", "of the bound"], rows)
    )


BENCHMARK = Benchmark(
    "performance/bounds", cells, measured, inside="", sections=(Section("lab/performance.md", "bounds", table),),
    ratios=lambda row: {"peak of the bound": row["peak_anonymous_bytes"] / row["least"]},
)  # fmt: skip
