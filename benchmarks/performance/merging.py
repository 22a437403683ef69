"""Merging a 0.84-billion-parameter pair: against mergekit 0.1.5, against `cp`, and with alignment (Linux).

    python -m benchmarks.performance.merging                # writes results/performance/merging.json
    python -m benchmarks.performance.merging --repeats 3 1  # of what is short, and of what is long

The models are made on the first run (benchmarks/data/performance): a random Llama in bfloat16, four shards, and two
fine-tunes of it. All rows run in turns, with the same threads, with the inputs in the page cache. mergekit runs in
an environment of its own, which is made as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.processes import in_turns, measure, ratio, summaries

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data"
FOLDER = DATA / "performance"
RESULTS = ROOT / "benchmarks" / "results" / "performance" / "merging.json"
MODEL = Llama(width=2048, neurons=5504, layers=14, heads=16, key_heads=16, vocabulary=32000)
MODELS = {"base": 0.0, "one": 0.1, "two": 0.1}
"""Noise over the base, in standard deviations of its weights."""
METHODS: dict[str, dict[str, Any]] = {"linear": {"weight": 1.0}, "ties": {"weight": 1.0, "density": 0.5}}
WORK = """
import sys, time
import isomerge, torch
align, *models, out = sys.argv[1:]
start = time.perf_counter()
isomerge.merge(models, out=out, align=align == "align", dtype="bfloat16")
print(time.perf_counter() - start)
"""
"""Prints the seconds of the work alone: without the interpreter's start and torch's import."""


def write_recipe(method: str, *, align: bool = False) -> Path:
    """The recipe that both tools read; both write bfloat16."""
    models = [{"model": str(FOLDER / name), "parameters": METHODS[method]} for name in ("one", "two")]
    recipe: dict[str, Any] = {"models": models, "merge_method": method, "dtype": "bfloat16"}
    if method != "linear":
        recipe["base_model"] = str(FOLDER / "base")
    if align:
        recipe["align"] = True
    file = FOLDER / f"{method}{'-aligned' if align else ''}.yml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file


def rows_of(method: str, threads: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured with a method: a name, and one run of it."""
    recipe = str(write_recipe(method))
    ours, theirs = (
        str(Path(sys.executable).parent / "isomerge"),
        str(DATA / "mergekit-env" / "bin" / "mergekit-yaml"),
    )
    commands: dict[str, Sequence[str]] = {
        "isomerge": (ours, "merge", recipe, "{out}", "-j", str(threads)),
        "mergekit": (theirs, recipe, "{out}"),
        "mergekit, 500M shards": (theirs, recipe, "{out}", "--out-shard-size", "500M"),
    }
    one, two = (str(FOLDER / name) for name in ("one", "two"))
    if method == "linear":
        commands["isomerge, the work alone"] = (sys.executable, "-c", WORK, "plain", one, two, "{out}")
        commands["the bare loop"] = (sys.executable, "-m", "benchmarks.performance.bare_loop", one, two, "{out}")
        commands["cp of one model"] = ("cp", "-r", one, "{out}")
        commands["cp of both models"] = ("cp", "-r", one, two, "{out}")
        commands["isomerge, aligned"] = (
            ours,
            "merge",
            str(write_recipe(method, align=True)),
            "{out}",
            "-j",
            str(threads),
        )
    return {name: partial(_run, name, command, threads) for name, command in commands.items()}


def _run(name: str, command: Sequence[str], threads: int) -> dict[str, Any]:
    out = FOLDER / "out" / "".join(c if c.isalnum() else "-" for c in name)
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)
    if "both" in name:
        out.mkdir(parents=True)
    out.parent.mkdir(exist_ok=True)
    command = [str(out) if word == "{out}" else word for word in command]
    inputs = [FOLDER / name for name in MODELS]
    return measure(command, threads=threads, log=out.with_suffix(".log"), inputs=inputs)


def difference(ours: Path, theirs: Path) -> dict[str, float]:
    """The largest difference of any weight, and the root mean square over that of the weights."""
    from safetensors import safe_open

    largest, squares, all_squares = 0.0, 0.0, 0.0
    places = [
        {name: file for file in sorted(folder.glob("*.safetensors")) for name in _names(file)}
        for folder in (ours, theirs)
    ]
    if places[0].keys() != places[1].keys():
        raise RuntimeError("the tools wrote different tensors")
    for name in places[0]:
        pair = []
        for place in places:
            with safe_open(place[name], "pt") as file:
                pair.append(file.get_tensor(name).float())
        a, b = pair
        all_squares += float(a.norm()) ** 2
        a -= b
        largest, squares = max(largest, float(a.abs().max())), squares + float(a.norm()) ** 2
    return {"largest": largest, "relative": (squares / all_squares) ** 0.5}


def _names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def make_environment() -> None:
    """mergekit's own environment; its maker is a script beside its recipes."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "mergekit"))
    from compare import environment  # type: ignore[import-not-found]

    environment()


def run(repeats: dict[str, int], threads: int) -> dict[str, Any]:
    """Every method by every tool."""
    found: dict[str, Any] = {
        "parameters": MODEL.parameters,
        "threads": threads,
        "cores": os.cpu_count(),
        "methods": {},
    }
    for method, count in repeats.items():
        runs = in_turns(rows_of(method, threads), count)
        gap = difference(FOLDER / "out" / "isomerge", FOLDER / "out" / "mergekit")
        entry = {"summary": summaries(runs), "against_mergekit": gap, "runs": runs}
        entry["ratios"] = {slow: ratio(runs, slow, "isomerge") for slow in ("mergekit", "mergekit, 500M shards")}
        if method == "linear":
            cps = [run for run in runs if run["row"].startswith("cp")]
            work = [{**r, "seconds": r["work_seconds"]} for r in runs if "work_seconds" in r]
            entry["ratios"] |= {
                copy: ratio([*cps, *work], "isomerge, the work alone", copy)
                for copy in ("cp of one model", "cp of both models")
            }
        found["methods"][method] = entry
        shutil.rmtree(FOLDER / "out")
    return found


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, nargs=2, default=(3, 1), metavar=("LINEAR", "TIES"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="measure these anew")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    make_environment()
    for number, (name, noise) in enumerate(MODELS.items()):
        write(FOLDER / name, MODEL, 0, shards=4, noise=noise, draw=number)
    repeats = dict(zip(METHODS, chosen.repeats, strict=True))
    found = run({method: repeats[method] for method in chosen.methods}, chosen.threads)
    if RESULTS.exists():
        found["methods"] = {**json.loads(RESULTS.read_text())["methods"], **found["methods"]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
