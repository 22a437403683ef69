"""Table 3: run time of training, matching and merging, in processor seconds of one thread.

Every command is run in this process after a first run that loads libraries; statistics are gathered anew for every
merge that needs them, of both models. Training: the wall-clock seconds that `benchmarks/barrier/train.py` recorded,
on cores shared with other work, and the processor seconds of 40 steps of a fresh model times the number of steps; of
MiniLM, one whole fine-tuning. Cells are `STAGE/FAMILY/PAIR`.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.barrier import train
from benchmarks.harness import Benchmark, Cells
from benchmarks.paper import vits
from benchmarks.paper.table1 import PRESETS, Run, tune
from benchmarks.paper.text import TASKS

STEPS = 40
TEXT = str(vits.BARRIER / "corpus" / "train.txt")
LOOKS = {"vit-fashion": (vits.TRAIN, 512), "llama": (TEXT, 64), "gpt2": (TEXT, 64)}
MATCHINGS = ("paper", "all", "activations")


def clock(task: Callable[[], Any]) -> float:
    """Processor seconds, of all threads of this process."""
    began = time.process_time()
    task()
    return round(time.process_time() - began, 3)


def recorded(folder: Path) -> dict[str, Any]:
    """What was written down when a model was trained; empty where that was not here."""
    file = folder / "training.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def training(family: str, seed: int) -> dict[str, Any]:
    """What training a model took, and what 40 steps say that it takes."""
    run = train.plan(family, seed, None, None)
    model, task = train.FAMILIES[family].build(run).train(), train.FAMILIES[family].task(run)
    optimizer, generator = train.build_optimizer(model), torch.Generator().manual_seed(seed)
    batches = list(islice(task.epoch(generator), STEPS + 5))

    def steps(chosen: list[Any]) -> None:
        for batch in chosen:
            loss = task.loss(model, batch, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    steps(batches[:5])
    record = recorded(run.folder)
    return {
        "recorded_wall_seconds": record["seconds"],
        "processor_seconds": round(clock(lambda: steps(batches[5:])) / STEPS * run.steps, 1),
        "steps": run.steps,
        "parameters": record["parameters"],
        "extrapolated_from_steps": STEPS,
    }


def fine_tuning(seed: int) -> dict[str, Any]:
    """What tuning MiniLM on one domain of Table 1 takes, from the first step to the last."""
    task = TASKS["vader"]
    run = Run(PRESETS["table1"], task, task.domains[0], seed)
    took = clock(lambda: tune(run))
    return {
        "recorded_wall_seconds": recorded(run.folder).get("seconds"),
        "processor_seconds": took,
        "domain": run.domain,
    }


def look(family: str) -> dict[str, Any]:
    """The data that matching by activations and transport see."""
    return dict(zip(("data", "limit"), LOOKS[family], strict=True))


def matching(family: str, pair: str, name: str, out: Path) -> None:
    """Match a pair of a family."""
    anchor, source = (vits.BARRIER / family / f"seed-{number}" for number in pair.split("-"))
    how: dict[str, Any] = {"spaces": "paper" if name == "paper" else "all"}
    how |= look(family) if name == "activations" else {}
    how |= {"untie": True} if family == "gpt2" and name != "paper" else {}
    isomerge.align(source, onto=anchor, out=out, align=True, overwrite=True, **how)


def merging(family: str, pair: str, name: str, out: Path) -> None:
    """Merge a pair of a family, as stored, with what that needs."""
    models = [vits.BARRIER / family / f"seed-{number}" for number in pair.split("-")]
    how = dict(vits.ROWS[name])
    if method := how.get("method"):
        how["stats"] = [out.with_name(f"{number}.safetensors") for number in range(len(models))]
        for model, file in zip(models, how["stats"], strict=True):
            isomerge.stats(
                model, data=LOOKS[family][0], out=file, overwrite=True, **{**vits.STATISTICS, "kinds": method}
            )
    elif "data" in how:
        how |= look(family)
    isomerge.merge(models, out=out, align="match" in how, overwrite=True, **how)


STAGES: Mapping[str, Callable[[str, str, str, Path], None]] = {"matching": matching, "merging": merging}


def measure(stage: str, family: str, name: str = "", pair: str = "", seed: int = 0) -> dict[str, Any]:
    """A cell."""
    if stage == "training":
        return fine_tuning(seed) if family == "minilm" else training(family, seed)
    with tempfile.TemporaryDirectory(dir=vits.MADE) as folder:
        return {"processor_seconds": clock(lambda: STAGES[stage](family, pair, name, Path(folder) / "out"))}


def cells(asked: Namespace) -> Cells:
    """Training by seed, matching and merging by pair: three of ViTs, one of the others."""
    every: dict[str, dict[str, Any]] = {
        f"training/{family}/{seed}": {"stage": "training", "family": family, "seed": seed}
        for family in LOOKS
        for seed in (0, 1, 2)
    }
    every["training/minilm/0"] = {"stage": "training", "family": "minilm"}
    for family in LOOKS:
        vision = family == "vit-fashion"
        names = {"matching": MATCHINGS, "merging": vits.PAPER_ROWS if vision else ("simple",)}
        for pair in vits.PAIRS if vision else vits.PAIRS[:1]:
            for stage in STAGES:
                for name in names[stage]:
                    how = {"stage": stage, "family": family, "name": name, "pair": pair}
                    every[f"{stage}, {name}/{family}/{pair}"] = how
    return every


def load_libraries(asked: Namespace) -> None:
    """A first run, which is not timed."""
    vits.prepare()
    measure("matching", "vit-fashion", "activations", vits.PAIRS[0])


TABLE3 = Benchmark(
    "paper/runtimes", cells, measure, before=load_libraries,
    settings={"steps": STEPS, "pairs": list(vits.PAIRS), "statistics": vits.STATISTICS},
)  # fmt: skip
