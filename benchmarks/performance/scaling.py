"""Time and memory of alignment and merging against depth, width and heads, and one large pair (Linux).

    python -m benchmarks.performance.scaling                 # writes results/performance/scaling.json
    python -m benchmarks.performance.scaling --large 1.5     # and a pair of about so many billions of parameters each

Pairs are fine-tunes of one random Llama in bfloat16, apart by a tenth of its weights' standard deviation. Every row
is a process of its own. Results are kept row by row: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.processes import measure

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "performance" / "scaling.json"
PROGRAM = str(Path(sys.executable).parent / "isomerge")
MODEL = Llama(width=1024, neurons=2816, layers=4, heads=16, key_heads=4, vocabulary=4096)
BILLION = Llama(width=4096, neurons=14336, layers=1, heads=32, key_heads=8, vocabulary=128256)
"""Layers of Llama-3-8B, of which `--large` takes as many as it says."""
LIMITS = ("0.7GB", "1GB")
NOISE = 0.1


def shapes() -> dict[str, Llama]:
    """The models of the curves, by name."""
    found = {f"depth {depth}": replace(MODEL, layers=depth) for depth in (4, 8, 16)}
    found |= {
        f"width {width}": replace(
            MODEL, width=width, neurons=width * 11 // 4, heads=width // 64, key_heads=width // 256
        )
        for width in (512, 1024, 2048)
    }
    found |= {f"heads {heads}": replace(MODEL, heads=heads, key_heads=heads // 4) for heads in (8, 16, 32)}
    return found


def run(model: Llama, what: str, options: Sequence[str] = (), *, related: bool = True) -> dict[str, Any]:
    """One row: a pair is written, worked on, and removed."""
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks" / "data") as temporary:
        root = Path(temporary)
        shards = max(1, model.parameters // 2_000_000_000)
        pair = [
            write(root / str(k), model, 0 if related else k, shards=shards, noise=NOISE, draw=k) for k in (1, 2)
        ]
        command = [PROGRAM, what, "--align", *map(str, pair[::-1]), "-o", str(root / "out")]
        if what == "align":
            command = [PROGRAM, what, "--align", str(pair[1]), "--onto", str(pair[0]), "-o", str(root / "out")]
        found = measure([*command, *options, "--quiet"], threads=1, log=root / "log", inputs=pair)
        report = json.loads((root / "out" / "isomerge.json").read_text())
        found["distance"] = {key: report["distance"][key] for key in ("before", "after", "norm")}
        if what == "merge":
            shutil.rmtree(root / "out")
            found["dry_run"] = _dry_run([*command, *options], root)
    return {"what": what, "options": list(options), "related": related, "parameters": model.parameters, **found}


def _dry_run(command: Sequence[str], root: Path) -> dict[str, Any]:
    """What the program itself expects."""
    file = root / "dry.json"
    measure([*command, "--dry-run", "--json", str(file), "--quiet"], threads=1, log=root / "dry.log")
    return json.loads(file.read_text()).get("estimate", {})


def rows() -> dict[str, Any]:
    """Name, and how it is run."""
    found: dict[str, Any] = {}
    for name, model in shapes().items():
        for what in ("align", "merge"):
            found[f"{name}, {what}"] = (model, what, (), True)
    found["width 1024, merge, unrelated"] = (MODEL, "merge", (), False)
    for limit in LIMITS:
        found[f"depth 16, merge, -j 2 --max-memory {limit}"] = (
            replace(MODEL, layers=16), "merge", ("-j", "2", "--max-memory", limit), True,
        )  # fmt: skip
    found["depth 16, merge, -j 2"] = (replace(MODEL, layers=16), "merge", ("-j", "2"), True)
    return found


def large(billions: float) -> Llama:
    """A model of whole layers of Llama-3-8B's, of about so many parameters."""
    empty = replace(BILLION, layers=0).parameters
    each = BILLION.parameters - empty
    return replace(BILLION, layers=max(1, round((billions * 1e9 - empty) / each)))


def main() -> None:
    """Measure what is missing and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=float, metavar="BILLIONS", help="parameters of each model of one more pair")
    parser.add_argument("--again", action="store_true", help="forget what was measured")
    chosen = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() and not chosen.again else {}
    todo = rows()
    if chosen.large:
        model = large(chosen.large)
        need, free = 6.2 * model.parameters, shutil.disk_usage(ROOT).free
        if need > free:
            raise SystemExit(f"a pair and its merge take {need / 1e9:.0f} GB, but {free / 1e9:.0f} GB are free")
        todo[f"large, {model.parameters / 1e9:.1f} billion, merge"] = (model, "merge", ("-j", "1"), True)
    RESULTS.parent.mkdir(exist_ok=True)
    for name, (model, what, options, related) in todo.items():
        if name not in found:
            found[name] = run(model, what, options, related=related)
            print(name, {k: found[name][k] for k in ("seconds", "cpu_seconds", "peak_anonymous_bytes")}, flush=True)
            RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
