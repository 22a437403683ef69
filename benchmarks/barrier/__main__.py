"""The loss barrier between models that were trained from different seeds, by kind of matching.

    python -m benchmarks.barrier                              # what is missing, one core; from nothing many hours
    python -m benchmarks.barrier --only 'llama-width-512/*'   # one study
    python -m benchmarks.barrier --page                       # the table of docs/lab/measured-barriers.md

A cell is a pair of models of a study (`studies.py`): the second one is aligned onto the first in every way (a row),
and loss and accuracy are measured on test data along the line between them. Models that are missing are trained
first (`train.py`); rows that are measured are kept. Matching never sees test data.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import isomerge
from benchmarks.barrier import train
from benchmarks.barrier.data import BARRIER
from benchmarks.barrier.studies import GENERATED, IMAGES, LIMITS, ROWS, STUDIES, Study
from benchmarks.harness import Benchmark, Section, main, markdown, quiet
from isomerge.errors import IsomergeError

WAYS = {
    "as stored": ("stored",), "the paper's spaces": ("paper",), "inside layers": ("default",),
    "streams too": ("all",), "with activations": ("activations",), "searched, 60 s": ("search",),
    "learned, 300 steps": ("distilled-quick", "learned-quick"),
    "learned longest": ("thorough", "distilled", "learned"), "no data, activations": ("generated",),
    "no data, learned": ("generated-distilled",),
}  # fmt: skip
"""The columns: of the rows, the first one that a study has."""
FAMILIES = {
    "vit-digits": ("ViT, digits", 64),
    "vit-fashion": ("ViT, Fashion-MNIST", 64),
    "llama": ("Llama-like", 128),
    "gpt2": ("GPT-2-like", 128),
}
"""What a family is called, and its usual width."""


def aligned(study: Study, row: str, a: Path, b: Path) -> tuple[Path, dict[str, Any]]:
    """The second model aligned onto the first, and what that took."""
    folder = BARRIER / "aligned" / study.family
    out, options = folder / f"{a.name}--{b.name}--{row}", study.options(row)
    began = time.perf_counter()
    if row.startswith("generated"):  # examples of a pair, made once
        file = folder / f"{a.name}--{b.name}.safetensors"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            isomerge.generate([a, b], out=file, limit=GENERATED)
        options["data" if row == "generated" else "learn"] = str(file)
    _, report = isomerge.align(b, onto=a, out=out, align=True, overwrite=True, **options)
    stream = (report.get("streams") or [{}])[0]
    return out, {
        "seconds": round(time.perf_counter() - began, 1),
        "distance": report["distance"]["after"],
        "distance_stored": report["distance"]["before"],
        "sweeps": len(stream.get("objective", [])) // 2,
        "learned": {k: v for k, v in stream.get("learned", {}).items() if k != "history"},
        "search": stream.get("search"),
        "in_place": stream.get("in_place"),
    }


def anchor_of(study: Study, row: str, a: Path) -> Path:
    """The anchor; with a head of its own, which is the same function, where the moved model has one."""
    if row == "stored" or not study.options(row).get("untie"):
        return a
    out = BARRIER / "aligned" / study.family / f"{a.name}-untied"
    if not out.exists():
        isomerge.align(a, onto=a, out=out, spaces="none", untie=True)
    return out


def measured_line(study: Study, a: Path, b: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The line between two models on test data, and what belongs to the pair."""
    report = isomerge.barrier(
        a, b, data=study.data("test"), spaces="none", points=study.points, limit=LIMITS[study.family]["test"],
        batch_size=128,
    )  # fmt: skip
    line = report["lines"][0]
    return line, {"ensemble": report["ensemble"], "ends": line["ends"], "examples": report["data"]["examples"]}


def measure(
    study: Study, pair: str, kept: dict[str, Any] | None, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All rows of one pair that are missing."""
    entry = kept or {"rows": {}}
    runs = [train.plan(*model) for model in study.models if str(model[1]) in pair.split("-")]
    for run in runs:
        train.make(run)
    a, b = (run.folder for run in runs)
    # what the models are as they are stored is measured first: other rows are compared with it
    for row in [row for row in study.rows_of(pair) if row not in entry["rows"]]:
        try:
            moved, cost = (b, {}) if row == "stored" else aligned(study, row, a, b)
        except IsomergeError as error:
            print(f"{a.name} {b.name} {row}: {error}", flush=True)
            continue
        line, ends = measured_line(study, anchor_of(study, row, a), moved)
        entry.setdefault("pair", ends)
        check_same_models(line["ends"][0]["loss"], entry["pair"]["ends"][0]["loss"], f"{a.name} and {b.name}")
        figures = {k: line[k] for k in ("barrier", "midpoint", "highest", "losses", "accuracies")}
        entry["rows"][row], entry["points"] = {**cost, **figures}, line["points"]
        if row != "stored":
            shutil.rmtree(moved)
        keep(entry)
        print(f"{study.name} {pair} {row:13s} barrier {line['barrier']['entezari']:.4f}", flush=True)
    return entry


def check_same_models(now: float, then: float, pair: str) -> None:
    """Stop where a pair is not the one that its kept rows are of; the anchor, which nothing moves, tells by its loss.

    Models that are trained anew on another processor are others: rounding grows with the steps.
    """
    if not math.isclose(now, then, rel_tol=1e-5):  # another processor's rounding changes a mean loss by less
        raise SystemExit(
            f"{pair}: the anchor has a test loss of {now:.6f} and had {then:.6f} when the kept rows were measured: "
            "these are other models, so remove the file of results and measure all its rows"
        )


def about(study: Study, pairs: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over pairs, by row, and what was measured with."""
    summary: dict[str, Any] = {}
    for row in ROWS:
        figures = [entry["rows"][row] for entry in pairs.values() if row in entry.get("rows", {})]
        if figures:
            barriers = [r["barrier"]["entezari"] for r in figures]
            summary[row] = {
                "pairs": len(figures),
                "barrier": statistics.fmean(barriers),
                "barrier_spread": statistics.stdev(barriers) if len(figures) > 1 else None,
                "midpoint_loss": statistics.fmean(r["midpoint"]["loss"] for r in figures),
                "midpoint_accuracy": statistics.fmean(r["midpoint"]["accuracy"] or 0 for r in figures),
                "seconds": statistics.fmean(r.get("seconds", 0) for r in figures),
            }
    settings = {"limits": LIMITS[study.family], "learn": study.learning, "versions": {"torch": torch.__version__}}
    return {"family": study.name, "settings": settings, "summary": summary}


def table(cells: dict[str, Any]) -> str:
    by_name = sorted((called(study), study) for study in STUDIES)
    rows = [row_of(name, study) for name, study in by_name if BENCHMARKS[study].results().cells]
    return markdown(["models", "pairs", "ends and ensemble, accuracy", *WAYS], rows)


def called(study: Study) -> str:
    name, width = FAMILIES[study.family]
    return f"{name}, width {study.width or width}" + (", disjoint halves of the data" if study.half else "")


def row_of(name: str, study: Study) -> list[str]:
    pairs = [entry for entry in BENCHMARKS[study].results().cells.values() if entry.get("rows")]
    ends = [end["accuracy"] for entry in pairs for end in entry["pair"]["ends"]]
    together = [entry["pair"]["ensemble"]["accuracy"] for entry in pairs]
    accuracy = f"{100 * fmean(ends):.1f}, {100 * fmean(together):.1f}"
    return [name, str(len(pairs)), accuracy, *(_figures(study, pairs, way, rows) for way, rows in WAYS.items())]


def _figures(study: Study, pairs: Sequence[dict[str, Any]], way: str, rows: Sequence[str]) -> str:
    """Barrier and accuracy of the first of some rows that a study has."""
    row = next((row for row in rows if any(row in entry["rows"] for entry in pairs)), None)
    if row is None:
        return "–"
    figures = [entry["rows"][row] for entry in pairs if row in entry["rows"]]
    barriers = [entry["barrier"]["entezari"] for entry in figures]
    accuracy = 100 * fmean(entry["midpoint"]["accuracy"] or 0.0 for entry in figures)
    steps = sorted({entry["learned"]["steps"] for entry in figures if entry.get("learned", {}).get("steps")})
    longest = f"; {steps[0]} steps" if way == "learned longest" and steps else ""
    spread = f" ± {stdev(barriers):.3f}" if len(barriers) > 1 else ""
    return f"{fmean(barriers):.3f}{spread}{_marks(study, row, figures)} ({accuracy:.1f}{longest})"


def _marks(study: Study, row: str, figures: Sequence[dict[str, Any]]) -> str:
    """What is different about a cell."""
    learned = [entry.get("learned") or {} for entry in figures]
    sharp = any(how.get("target") == "distill" and "temperature" not in how for how in learned)
    before = row == "all" and not all(entry.get("in_place") for entry in figures)
    return (
        ("¹" if row.startswith("learned") else "")
        + ("²" if sharp and study.family in IMAGES else "")
        + ("³" if before else "")
    )


def benchmark(study: Study) -> Benchmark:
    return Benchmark(
        f"barrier/{study.name}", lambda asked: {pair: {"study": study, "pair": pair} for pair in study.pairs},
        measure, resumes=True, inside="pairs", about=partial(about, study), sections=(SECTION,),
        said=lambda entry: ", ".join(f"{r} {e['barrier']['entezari']:.3f}" for r, e in entry["rows"].items()),
        complete=lambda entry, how: set(entry["rows"]) >= set(how["study"].rows_of(how["pair"])),
    )  # fmt: skip


SECTION = Section("lab/measured-barriers.md", "barriers", table)
BENCHMARKS = {study: benchmark(study) for study in STUDIES}

if __name__ == "__main__":
    quiet()
    main(*BENCHMARKS.values(), about=__doc__)
