"""Table 3: run time of training, matching and merging, in processor seconds of one thread.

    python -m benchmarks.paper.vision.runtimes

Every command is run in this process after a first run that loads libraries; statistics are gathered anew for every
merge that needs them, of both models. Training: the wall-clock seconds that `benchmarks/barrier/train.py` recorded,
on cores shared with other work, and the processor seconds of 40 steps of a fresh model times the number of steps;
of MiniLM, one whole fine-tuning. Cells `STAGE/FAMILY/PAIR` of
`benchmarks/results/paper/runtimes.json`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.barrier import train
from benchmarks.paper.results import Results
from benchmarks.paper.text.data import TASKS
from benchmarks.paper.text.finetune import Run, tune
from benchmarks.paper.text.settings import PRESETS
from benchmarks.paper.vision.endpoints import BARRIER, MADE, RESULTS, prepare
from benchmarks.paper.vision.fusions import PAPER_ROWS, ROWS, STATISTICS, TRAIN

PAIRS = ("0-1", "0-2", "1-2")
STEPS = 40
TEXT = str(BARRIER / "corpus" / "train.txt")
LOOKS = {"vit-fashion": (TRAIN, 512), "llama": (TEXT, 64), "gpt2": (TEXT, 64)}
MATCHINGS = {"paper": {"spaces": "paper"}, "all": {"spaces": "all"}}


def models(family: str, pair: str) -> list[Path]:
    """The folders of a pair."""
    return [BARRIER / family / f"seed-{number}" for number in pair.split("-")]


def clock(task: Callable[[], Any]) -> float:
    """Processor seconds, of all threads of this process."""
    began = time.process_time()
    task()
    return round(time.process_time() - began, 3)


def training(family: str, seed: int) -> dict[str, Any]:
    """What training a model took, and what 40 steps say that it takes."""
    run = train.plan(family, seed, None, None)
    told = json.loads((run.folder / "training.json").read_text())
    model, task = train.FAMILIES[family].build(run).train(), train.FAMILIES[family].task(run)
    optimizer, generator = train.build_optimizer(model), torch.Generator().manual_seed(seed)
    batches = [batch for batch, _ in zip(task.epoch(generator), range(STEPS + 5), strict=False)]

    def steps(chosen: list[Any]) -> None:
        for batch in chosen:
            loss = task.loss(model, batch, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    steps(batches[:5])
    return {
        "recorded_wall_seconds": told["seconds"],
        "processor_seconds": round(clock(lambda: steps(batches[5:])) / STEPS * run.steps, 1),
        "steps": run.steps,
        "parameters": told["parameters"],
        "extrapolated_from_steps": STEPS,
    }


def fine_tuning(seed: int) -> dict[str, Any]:
    """What tuning MiniLM on one domain of Table 1 takes, from the first step to the last."""
    preset, task = PRESETS["cpu"], TASKS["vader"]
    run = Run(preset, task, task.domains[0], seed)
    told = json.loads((run.folder / "training.json").read_text()) if run.done else {}
    took = clock(lambda: tune(run))
    return {"recorded_wall_seconds": told.get("seconds"), "processor_seconds": took, "domain": run.domain}


def tasks(family: str, pair: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    anchor, source = models(family, pair)
    data, limit = LOOKS[family]
    out = folder / "out"

    def match(**options: Any) -> Callable[[], Any]:
        return lambda: isomerge.align(source, onto=anchor, out=out, align=True, overwrite=True, **options)

    def merge(row: str) -> Callable[[], Any]:
        how = dict(ROWS[row])
        if method := how.get("method"):
            files = [folder / f"{number}.safetensors" for number in range(2)]
            settings = {**STATISTICS, "kinds": method}

            def run() -> None:
                for model, file in zip((anchor, source), files, strict=True):
                    isomerge.stats(model, data=data, out=file, overwrite=True, **settings)
                isomerge.merge([anchor, source], out=out, align=False, overwrite=True, stats=files, **how)

            return run
        if "data" in how:
            how |= {"data": data, "limit": limit}
        return lambda: isomerge.merge([anchor, source], out=out, align="match" in how, overwrite=True, **how)

    looks: dict[str, Any] = {"spaces": "all", "data": data, "limit": limit}
    tied = {"untie": True} if family == "gpt2" else {}
    found = {
        f"matching, {name}": match(**how, **(tied if name == "all" else {})) for name, how in MATCHINGS.items()
    }
    found["matching, activations"] = match(**looks, **tied)
    rows = PAPER_ROWS if family == "vit-fashion" else ("simple",)
    return found | {f"merging, {row}": merge(row) for row in rows}


def cells() -> Results:
    """Every run time."""
    return Results(RESULTS / "runtimes.json", {"steps": STEPS, "pairs": list(PAIRS), "statistics": STATISTICS})


def main() -> None:
    """Measure what is missing."""
    prepare()
    found = cells()
    for family in LOOKS:
        for seed in (0, 1, 2):
            if not found.has(key := f"training/{family}/{seed}"):
                found.put(key, training(family, seed))
    if not found.has(key := "training/minilm/0"):
        found.put(key, fine_tuning(0))
    for family in LOOKS:
        for pair in PAIRS if family == "vit-fashion" else PAIRS[:1]:
            with tempfile.TemporaryDirectory(dir=MADE) as temporary:
                todo = {
                    k: t
                    for k, t in tasks(family, pair, Path(temporary)).items()
                    if not found.has(f"{k}/{family}/{pair}")
                }
                if todo:
                    next(iter(todo.values()))()  # loads libraries
                for name, task in todo.items():
                    found.put(key := f"{name}/{family}/{pair}", {"processor_seconds": clock(task)})
                    print(key, found.get(key), flush=True)


if __name__ == "__main__":
    main()
