"""Merging a 0.84-billion-parameter pair: against mergekit 0.1.5, against `cp`, and with alignment (Linux).

The models are made on the first run (benchmarks/data/performance): a random Llama in bfloat16, four shards, and two
fine-tunes of it. All rows run in turns, with the same threads, with the inputs in the page cache. mergekit runs in
an environment of its own, which is made as well.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import yaml

import isomerge
from benchmarks.harness import DATA, Benchmark, Section, markdown
from benchmarks.mergekit.methods import mergekit_python
from benchmarks.performance.llamas import Llama, write
from benchmarks.performance.processes import PROGRAM, measure

FOLDER = DATA / "performance"
MODEL = Llama(width=2048, neurons=5504, layers=14, heads=16, key_heads=16, vocabulary=32000)
MODELS = {"base": 0.0, "one": 0.1, "two": 0.1}
"""Noise over the base, in standard deviations of its weights."""
METHODS: dict[str, dict[str, Any]] = {"linear": {"weight": 1.0}, "ties": {"weight": 1.0, "density": 0.5}}
REPEATS = {"linear": 3, "ties": 1}
"""Of what is short, and of what is long."""
THREADS = os.cpu_count() or 1
WORK = """
import sys, time
import isomerge, torch
*models, out = sys.argv[1:]
start = time.perf_counter()
isomerge.merge(models, out=out, align=False, dtype="bfloat16")
print(time.perf_counter() - start)
"""
"""Prints the seconds of the work alone: without the interpreter's start and torch's import."""
Run = dict[str, Any]


def make_models(folder: Path = FOLDER, model: Llama = MODEL) -> list[Path]:
    """The base and its two fine-tunes, made once."""
    return [
        write(folder / name, model, 0, shards=4, noise=noise, draw=number)
        for number, (name, noise) in enumerate(MODELS.items())
    ]


def write_recipe(method: str, **more: Any) -> Path:
    """The recipe that both tools read; both write bfloat16. What is said beside it, such as ``align``, isomerge
    alone reads.
    """
    models = [{"model": str(FOLDER / name), "parameters": METHODS[method]} for name in ("one", "two")]
    base = {} if method == "linear" else {"base_model": str(FOLDER / "base")}
    recipe = {"models": models, "merge_method": method, "dtype": "bfloat16", **base, **more}
    file = FOLDER / f"{'-'.join([method, *more])}.yml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file


def rows_of(method: str) -> dict[str, Callable[[], Run]]:
    """What is measured with a method: a name, and one run of it."""
    recipe, threads = str(write_recipe(method)), str(THREADS)
    theirs = str(mergekit_python().parent / "mergekit-yaml")
    commands: dict[str, Sequence[str]] = {
        "isomerge": (PROGRAM, "merge", recipe, "{out}", "-j", threads),
        "mergekit": (theirs, recipe, "{out}"),
        "mergekit, 500M shards": (theirs, recipe, "{out}", "--out-shard-size", "500M"),
    }
    one, two = (str(FOLDER / name) for name in ("one", "two"))
    if method == "linear":
        aligned = str(write_recipe(method, align=True))
        commands |= {
            "isomerge, as typed": (PROGRAM, "merge", one, two, "--out", "{out}"),
            "isomerge, the work alone": (sys.executable, "-c", WORK, one, two, "{out}"),
            "the bare loop": (sys.executable, "-m", "benchmarks.performance.bare_loop", one, two, "{out}"),
            "cp of one model": ("cp", "-r", one, "{out}"),
            "cp of both models": ("cp", "-r", one, two, "{out}"),
            "isomerge, aligned": (PROGRAM, "merge", aligned, "{out}", "-j", threads),
        }
    return {name: partial(_run, name, command) for name, command in commands.items()}


def _run(name: str, command: Sequence[str]) -> Run:
    out = FOLDER / "out" / "".join(c if c.isalnum() else "-" for c in name)
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)
    out.mkdir(parents=True) if "both" in name else out.parent.mkdir(exist_ok=True)
    command = [str(out) if word == "{out}" else word for word in command]
    inputs = [FOLDER / name for name in MODELS]
    return measure(command, threads=THREADS, log=out.with_suffix(".log"), inputs=inputs)


def summaries(runs: Sequence[Run]) -> dict[str, Run]:
    """Per row: medians of all figures, the range of the seconds, and the largest peak."""
    rows: dict[str, Run] = {}
    for name in dict.fromkeys(run["row"] for run in runs):
        same = [run for run in runs if run["row"] == name]
        seconds = [run["seconds"] for run in same]
        rows[name] = {"runs": len(same), "seconds": median(seconds), "range": [min(seconds), max(seconds)]}
        for figure in ("cpu_seconds", "work_seconds"):
            if all(figure in run for run in same):
                rows[name][figure] = median(run[figure] for run in same)
        rows[name]["peak_anonymous_bytes"] = max(run["peak_anonymous_bytes"] for run in same)
    return rows


def ratio(runs: Sequence[Run], slow: str, fast: str, figure: str = "seconds") -> dict[str, float]:
    """How many times one row's figure is another's seconds, run by run: median, least and most."""
    times = {(run["row"], run["repeat"]): run for run in runs}
    each = [run[figure] / times[fast, run["repeat"]]["seconds"] for run in runs if run["row"] == slow]
    return {"median": round(median(each), 2), "least": round(min(each), 2), "most": round(max(each), 2)}


def measured(method: str) -> dict[str, Any]:
    """A method by every tool, in turns: what else the machine does slows all alike."""
    make_models()
    runs = []
    for number in range(REPEATS[method]):
        for name, run in rows_of(method).items():
            runs.append({"row": name, "repeat": number, **run()})
            print(runs[-1], flush=True)
    apart = isomerge.diff(FOLDER / "out" / "isomerge", FOLDER / "out" / "mergekit", spaces="none")["distance"]
    gap = {"relative": apart["before"] / apart["norm"]}
    pairs = [("mergekit", "isomerge"), ("mergekit, 500M shards", "isomerge")]
    if method == "linear":
        pairs += [("mergekit", "isomerge, as typed"), ("isomerge", "the bare loop")]
    ratios = {f"{slow} / {fast}": ratio(runs, slow, fast) for slow, fast in pairs}
    if method == "linear":
        work = "isomerge, the work alone"
        for copy in ("cp of one model", "cp of both models"):
            ratios[f"{work} / {copy}"] = ratio(runs, work, copy, "work_seconds")
    shutil.rmtree(FOLDER / "out")
    return {"summary": summaries(runs), "against_mergekit": gap, "runs": runs, "ratios": ratios}


def table(cells: dict[str, Any]) -> str:
    loads = [load for entry in cells.values() for run in entry["runs"] for load in run["load"]]
    whole, rows, ratios = BENCHMARK.document(), [], []
    for method, entry in cells.items():
        for name, row in entry["summary"].items():
            seconds = f"{row['seconds']:.1f} ({row['range'][0]:.1f}–{row['range'][1]:.1f})"
            memory = f"{row['peak_anonymous_bytes'] / 1e6:.0f}"
            rows.append([f"`{method}`", name, str(row["runs"]), seconds, f"{row['cpu_seconds']:.1f}", memory])
        for words, r in entry["ratios"].items():
            ratios.append([f"`{method}`", words, f"{r['median']:.1f}", f"{r['least']:.1f}–{r['most']:.1f}"])
    gaps = ", ".join(f"`{m}` {e['against_mergekit']['relative']:.1g}" for m, e in cells.items())
    head = ["method", "command", "runs", "seconds", "processor seconds", "memory (MB)"]
    parts = [
        f"Two fine-tunes of a random {whole['parameters'] / 1e9:.2f}-billion-parameter Llama in bfloat16 (and the base, for "
        f"`ties` at density 0.5), {whole['threads']} threads, all rows in turns, inputs in the page cache, machine of {whole['cores']} "
        f"cores shared with others (load {min(loads):.1f} to {max(loads):.1f}). Seconds are those of the whole command, "
        "median and range; processor seconds are user and system; memory is the peak of anonymous memory.",
        markdown(head, rows),
        markdown(["method", "ratio of seconds, run by run", "median", "range"], ratios),
        f"How far the outputs of the two tools differ, as a share of the norm: {gaps}. mergekit computes in "
        f"bfloat16, as the recipe's `dtype` says; isomerge computes in float32 and rounds once, when it writes.",
    ]
    return "\n\n".join(parts)


BENCHMARK = Benchmark(
    "performance/merging", lambda asked: {method: {"method": method} for method in METHODS}, measured,
    inside="methods",
    about=lambda cells: {"parameters": MODEL.parameters, "threads": THREADS, "cores": os.cpu_count()},
    sections=(Section("lab/performance.md", "merging", table),), said=lambda entry: str(entry["ratios"]),
    ratios=lambda entry: {
        words: r["median"] if words.startswith("isomerge") else 1 / r["median"] for words, r in entry["ratios"].items()
    },
)  # fmt: skip
