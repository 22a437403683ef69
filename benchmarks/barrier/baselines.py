"""What learning a match is worth beside what else the same examples buy: digits ViTs of three pairs of seeds.

    python -m benchmarks.barrier.baselines            # what is missing, a few minutes on one core
    python -m benchmarks.barrier.baselines --page     # the table, in the guide and on the page of barriers

A cell is a pair, of models that were trained for 300 epochs or for 40. Everything that learns takes 300 steps of 128
of the same 1347 training images, shifted at random in the same way: the match (`isomerge merge --learn`), and AdamW on
all weights (the rate and the decay that the models were trained with, a tenth of the steps to warm up, then a cosine)
from the plain mean, from the learned merge and from the first model alone; onto labels, or without them onto the mean
of both models' probabilities, softened as the match softens them. The weights of the last step count; test images
choose nothing.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import isomerge
from benchmarks.barrier import train
from benchmarks.barrier.data import load_images
from benchmarks.barrier.studies import ALL_PAIRS, STUDIES
from benchmarks.harness import Benchmark, Section, markdown, mean_spread, quiet
from benchmarks.paper.trained import descend
from isomerge.observe.live.modules import load_module
from isomerge.solve.learn.settings import LearnSettings, shifted

STUDY = next(study for study in STUDIES if study.name == "vit-digits")
STEPS, BATCH, WARMUP = 300, 128, 0.1
TRAINED = {None: "300 epochs", 880: "40 epochs"}
"""In how many steps the models were trained: the family's number, and a seventh of it."""
SETTINGS = LearnSettings()
LABELS, ENSEMBLE = "onto labels", "onto the ensemble, no labels"
MATCH = "learned match, no labels"
TUNED = (
    ("plain mean", LABELS), ("plain mean", ENSEMBLE), ("first model", LABELS), (MATCH, LABELS),
)  # fmt: skip
"""What is trained on, and onto what."""
WAYS = (
    "members, on average",
    "ensemble",
    "plain mean",
    MATCH,
    *(f"{start}, {STEPS} steps {aim}" for start, aim in TUNED),
)


def scored(*models: Any) -> dict[str, float]:
    """Loss in nats and accuracy on the test images, of the mean of the models' probabilities."""
    images, labels = load_images("digits", "test")
    with torch.no_grad():
        said = torch.stack([m(pixel_values=images).logits.double().softmax(-1) for m in models]).mean(0)
    right = (said.argmax(-1) == labels).double().mean()
    return {"loss": float(F.nll_loss(said.log(), labels)), "accuracy": float(right)}


def tuned(model: Any, teachers: Sequence[Any], seed: int) -> Any:
    """The model after `STEPS` steps, onto the mean of the teachers' probabilities or, without any, onto labels."""
    images, labels = load_images("digits", "train")
    rng, peak = torch.Generator().manual_seed(seed), train.FAMILIES[STUDY.family].peak_lr

    def loss() -> Tensor:
        rows = torch.randint(len(labels), (BATCH,), generator=rng)
        batch = shifted({"pixel_values": images[rows]}, rng)
        if not teachers:
            return F.cross_entropy(model(**batch).logits, labels[rows])
        heat = SETTINGS.temperature
        with torch.no_grad():
            wanted = torch.stack([(teacher(**batch).logits / heat).softmax(-1) for teacher in teachers]).mean(0)
        return F.cross_entropy(model(**batch).logits / heat, wanted)

    warmup = WARMUP * STEPS
    rates = [
        peak * min(step / warmup, 0.5 * (1 + math.cos(math.pi * max(0.0, step - warmup) / (STEPS - warmup))))
        for step in range(1, STEPS + 1)
    ]
    descend(model, loss, rates, clip=1.0, betas=(0.9, 0.99), weight_decay=train.WEIGHT_DECAY)
    return model


def learned(folders: Sequence[Path], out: Path) -> Any:
    """The learned merge of a pair."""
    isomerge.merge(folders, out=out, align=True, **STUDY.options("distilled-quick"))
    return load_module(out)


def measure(pair: str, steps: int | None) -> dict[str, dict[str, float]]:
    """Every way of a pair of models, trained in so many steps: loss, accuracy and processor seconds."""
    rows: dict[str, dict[str, float]] = {}
    seeds = [int(seed) for seed in pair.split("-")]
    runs = [train.plan(*model, steps) for model in STUDY.models if model[1] in seeds]
    for run in runs:
        train.make(run)
    folders = [run.folder for run in runs]
    ends = [load_module(folder) for folder in folders]

    def take(way: str, work: Callable[[], Any], already: float = 0.0) -> None:
        """Measure the model that some work makes."""
        began = time.process_time()
        model = work()
        rows[way] = scored(model) | {"seconds": round(already + time.process_time() - began, 1)}
        print(f"{pair} {way}: {rows[way]}", flush=True)

    each = [scored(model) for model in ends]
    rows["members, on average"] = {key: fmean(end[key] for end in each) for key in each[0]}
    rows["ensemble"] = scored(*ends)
    with tempfile.TemporaryDirectory(prefix="baselines-") as work:
        places = {"first model": folders[0], **{way: Path(work) / way for way in ("plain mean", MATCH)}}
        isomerge.merge(folders, out=places["plain mean"], align=False)
        rows["plain mean"] = scored(load_module(places["plain mean"]))
        take(MATCH, partial(learned, folders, places[MATCH]))
        for start, aim in TUNED:
            teachers = ends if aim == ENSEMBLE else []
            spent = rows[start].get("seconds", 0.0) if start in rows else 0.0
            take(
                f"{start}, {STEPS} steps {aim}",
                partial(tuned, load_module(places[start]), teachers, seeds[0]),
                spent,
            )
    return {way: rows[way] for way in WAYS}


def cell_of(pair: str, steps: int | None) -> str:
    """The name of a pair of models that were trained in so many steps."""
    return f"{steps}-steps/{pair}" if steps else pair


def table(cells: Mapping[str, Any]) -> str:
    """Mean and spread over the pairs; seconds are those of the first models."""
    rows = []
    for way in WAYS:
        row, spent = [way], [cells[pair][way].get("seconds") for pair in ALL_PAIRS]
        for steps, (key, scale, digits) in product(TRAINED, (("accuracy", 100, 1), ("loss", 1, 3))):
            mean, spread = mean_spread(scale * cells[cell_of(pair, steps)][way][key] for pair in ALL_PAIRS)
            row.append(f"{mean:.{digits}f} ± {spread:.{digits}f}")
        rows.append([*row, f"{fmean(spent):.0f}" if all(spent) else ""])
    figures = [f"{figure} ({trained})" for trained in TRAINED.values() for figure in ("accuracy, %", "loss, nats")]
    return markdown(["model", *figures, "processor seconds"], rows)


SECTIONS = tuple(Section(page, "baselines", table) for page in ("lab/measured-barriers.md", "guide/learned.md"))
BENCHMARK = Benchmark(
    "barrier/baselines",
    lambda asked: {cell_of(p, n): {"pair": p, "steps": n} for n, p in product(TRAINED, ALL_PAIRS)},
    measure,
    settings={"steps": STEPS, "batch": BATCH, "warmup": WARMUP, "temperature": SETTINGS.temperature},
    sections=SECTIONS,
    said=lambda cell: ", ".join(f"{way} {100 * cell[way]['accuracy']:.1f}" for way in WAYS),
    before=lambda asked: quiet(),
)

if __name__ == "__main__":
    BENCHMARK.main()
