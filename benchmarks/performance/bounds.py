"""Whether `--max-memory` holds: the least that a command takes to begin, and the peak of its anonymous memory
(Linux).

    python -m benchmarks.performance.bounds                  # writes results/performance/bounds.json
    python -m benchmarks.performance.bounds stats generate   # these rows alone

Pairs are Llama-shaped fine-tunes of one random model in bfloat16, read on random tokens where models are run. Every
row is a process of its own, with one thread and the least bound that it does not refuse. Results are kept row by
row: a run that was stopped goes on.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.processes import environment, measure

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "performance" / "bounds.json"
PROGRAM = [sys.executable, "-m", "isomerge"]
SHAPES = {"run": ((512, 4), (512, 12)), "weights": ((512, 4), (1024, 8))}
"""Widths and depths, of pairs that are run and of those whose weights alone are looked at."""
TOKENS, EXAMPLES = 64, 64
FEW = ("--spaces", "default", "--rows", "64")
"""Matched inside layers alone, on few rows: what runs the models is measured, not how streams are matched."""
MODELS: dict[str, tuple[str, ...]] = {
    "align": (),
    "merge": (),
    "merge --no-align": ("--no-align",),
    "merge --spaces all": ("--spaces", "all"),
    "merge ties": ("--method", "ties", "--base-model", "BASE", "--parameter", "density=0.5"),
    "merge --anchor none": ("--anchor", "none"),
}
DATA: dict[str, tuple[str, ...]] = {
    "align --data --evidence activations": (
        "--data",
        "DATA",
        "--spaces",
        "default",
        "--no-functional",
        "--evidence",
        "activations",
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
}
FORWARD: dict[str, tuple[str, ...]] = {
    "stats": ("--data", "DATA"),
    "stats --kinds fisher,kfac": ("--data", "DATA", "--kinds", "fisher,kfac", "--limit", "8"),
    "generate": ("--limit", "64"),
    "generate, long": ("--limit", "64", "--length", "256"),
    "barrier": ("--data", "DATA", "--points", "3"),
    "barrier, three models": ("--data", "DATA", "--grid", "2", "--spaces", "none"),
    "barrier --batch-size 64": ("--data", "DATA", "--points", "3", "--spaces", "none", "--batch-size", "64"),
}  # fmt: skip
"""Commands that run models and write none."""


def llama(width: int, layers: int) -> Llama:
    """A model of these sizes."""
    return Llama(width, width * 11 // 4, layers, heads=width // 64, key_heads=width // 256, vocabulary=2048)


def write_data(file: Path) -> Path:
    """Random tokens."""
    rng = random.Random(0)
    rows = [{"input_ids": [rng.randrange(2048) for _ in range(TOKENS)]} for _ in range(EXAMPLES)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(name: str, options: Sequence[str], model: Llama, root: Path) -> dict[str, Any]:
    """One row: what the program says that it needs, and what it takes within that."""
    models = [write(root / f"{model.width}-{model.layers}-{k}", model, 0, noise=0.1, draw=k) for k in range(3)]
    named = {"BASE": str(models[2]), "DATA": str(write_data(root / "data.jsonl"))}
    what = name.split()[0].strip(",")
    given, out = _arguments(what, name, models, root)
    length = [] if "--length" in options else ["--length", str(TOKENS)]
    command = [*PROGRAM, what, *given, *length, *(named.get(o, o) for o in options)]
    need = _need(command)
    limit = ["--max-memory", f"{need / 1e9 + 0.005:.3f}GB"]
    _asked([*command, *limit, "--dry-run", "-q", "--json", str(root / "dry.json")])
    estimate = json.loads((root / "dry.json").read_text())["estimate"]["memory"]
    found = measure([*command, *limit, "-q"], threads=1, log=root / "log", inputs=models[:2])
    shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
    kept = ("seconds", "cpu_seconds", "peak_anonymous_bytes", "load")
    return {"least": need, "estimate": estimate, **{key: found[key] for key in kept}}


def _arguments(what: str, name: str, models: Sequence[Path], root: Path) -> tuple[list[str], Path]:
    """The models that a command is given, and where it writes."""
    several = [str(m) for m in models[: 3 if "three" in name else 2]]
    if what == "barrier":
        return several, root / "nothing"
    file = root / "out.safetensors"
    if what in ("stats", "generate"):
        return [*several[: 1 if what == "stats" else 2], "-o", str(file)], file
    given = [str(models[1]), "--onto", str(models[0])] if what == "align" else several
    return [*given, "-o", str(root / "out")], root / "out"


def _need(command: Sequence[str]) -> float:
    """The least bound, as the program tells it when it refuses."""
    said = _asked([*command, "--dry-run", "--max-memory", "1MB"])
    found = re.search(r"needs about ([\d.]+) GB", said)
    if found is None:
        raise RuntimeError(f"{' '.join(command)} did not refuse a bound of 1 MB: {said}")
    return 1e9 * float(found[1])


def _asked(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(1)).stderr


def main(named: Sequence[str]) -> None:
    """Measure what is missing, of all rows or of those that are named, and write the results."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    todo = [(shape, row) for shape in SHAPES["run"] for row in DATA.items()]
    todo += [(shape, row) for shape in SHAPES["run"] for row in FORWARD.items()]
    todo += [(shape, row) for shape in SHAPES["weights"] for row in MODELS.items()]
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks" / "data") as folder:
        for (width, layers), (name, options) in todo:
            row = f"width {width}, depth {layers}: {name}"
            if row not in found and (not named or name in named):
                found[row] = run(name, options, llama(width, layers), Path(folder))
                print(row, found[row], flush=True)
                RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
