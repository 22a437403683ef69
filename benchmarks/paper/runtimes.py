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
from collections.abc import Callable, Mapping, Sequence
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
    record = json.loads((run.folder / "training.json").read_text())
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
    record = json.loads((run.model() / "training.json").read_text())
    took = clock(lambda: tune(run))
    return {"recorded_wall_seconds": record["seconds"], "processor_seconds": took, "domain": run.domain}


def matching(models: Sequence[Path], name: str, look: Mapping[str, Any], out: Path) -> None:
    """Match a pair; a GPT-2's tied head gets weights of its own."""
    how = {"spaces": "paper"} if name == "paper" else {"spaces": "all", "untie": "gpt2" in str(models[0])}
    how |= look if name == "activations" else {}
    isomerge.align(models[1], onto=models[0], out=out, align=True, overwrite=True, **how)


def merging(models: Sequence[Path], name: str, look: Mapping[str, Any], out: Path) -> None:
    """Merge a pair as stored, with what that needs."""
    how = dict(vits.ROWS[name].options)
    if "data" in how:
        how |= look
    if method := how.get("method"):
        how["stats"] = [out.with_name(f"{model.name}.safetensors") for model in models]
        for model, file in zip(models, how["stats"], strict=True):
            settings = {**vits.STATISTICS, "kinds": method}
            isomerge.stats(model, data=look["data"], out=file, overwrite=True, **settings)
    isomerge.merge([*models], out=out, align="match" in how, overwrite=True, **how)


STAGES = {"matching": matching, "merging": merging}


def measure(stage: str, family: str, name: str = "", pair: str = "", seed: int = 0) -> dict[str, Any]:
    if stage == "training":
        return fine_tuning(seed) if family == "minilm" else training(family, seed)
    models = [vits.BARRIER / family / f"seed-{number}" for number in pair.split("-")]
    look = dict(zip(("data", "limit"), LOOKS[family], strict=True))
    with tempfile.TemporaryDirectory(dir=vits.MADE) as folder:
        return {"processor_seconds": clock(lambda: STAGES[stage](models, name, look, Path(folder) / "out"))}


def cells(asked: Namespace) -> Cells:
    """Training by seed, matching and merging by pair: three of ViTs, one of the others."""
    every: dict[str, dict[str, Any]] = {"training/minilm/0": {"stage": "training", "family": "minilm"}}
    for family in LOOKS:
        for seed in (0, 1, 2):
            every[f"training/{family}/{seed}"] = {"stage": "training", "family": family, "seed": seed}
        rows, pairs = (vits.PAPER_ROWS, vits.PAIRS) if family == vits.FAMILY else (("simple",), vits.PAIRS[:1])
        for pair in pairs:
            for stage, names in (("matching", MATCHINGS), ("merging", rows)):
                for name in names:
                    key = f"{stage}, {name}/{family}/{pair}"
                    every[key] = {"stage": stage, "family": family, "name": name, "pair": pair}
    return every


def load_libraries(asked: Namespace) -> None:
    """A first run, which is not timed."""
    vits.prepare()
    measure("matching", "vit-fashion", "activations", vits.PAIRS[0])


TABLE3 = Benchmark(
    "paper/runtimes", cells, measure, before=load_libraries,
    settings={"steps": STEPS, "pairs": list(vits.PAIRS), "statistics": vits.STATISTICS},
)  # fmt: skip
