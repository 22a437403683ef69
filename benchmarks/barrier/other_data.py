"""Two models that have learned different things: their merge against both, their ensemble, and one model of all.

    python benchmarks/barrier/other_data.py [digits] [texts]     # results/barrier/other-data.json; half an hour on one core

Vision transformers of which one has seen the digits 0 to 4 and the other 5 to 9, and Llama-like models of which one has
read a novel and the other speeches (width 64, 4 layers, another start each). A model is scored on both tasks, on
examples that nothing has learned from. Merged: as stored, matched by weights, with activations, and learned (300 steps,
without labels, and digits with them), and what else follows a match: layer-wise regression, and re-normalised
activations (REPAIR). Last, `STEPS` ordinary steps on both tasks, onto the ensemble's probabilities or with labels,
from the merge that was learned and, as a control, from the first model alone: a merge is worth its match where it
starts better than one of its models does. Rows that are in the results are skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, ViTForImageClassification

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import isomerge
from benchmarks.barrier.data import BARRIER, WINDOW, load_images, windows
from benchmarks.barrier.train import llama, plan, vit_digits
from benchmarks.comparison.models import PLAIN, descended, text_of
from examples import train_digits

RESULTS = Path(__file__).resolve().parents[1] / "results" / "barrier" / "other-data.json"
DATA = BARRIER / "other-data"
SEEDS = (0, 1, 2)
STEPS = 300
WIDTH = 64
BOTH = "both"
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """Two tasks, and the models that learn them."""

    tasks: tuple[str, str]
    steps: int
    build: Callable[[int], Any]
    kind: Any
    """The class that reads its checkpoints."""
    batch: Callable[[str, torch.Generator], Batch]
    held_out: Callable[[str], Batch]
    look: int
    """Batches of each task that matching may look at."""


def of_digits(task: str, labels: Tensor) -> Tensor:
    """Which images a task has."""
    return {"0 to 4": labels < 5, "5 to 9": labels >= 5}[task].nonzero()[:, 0]


def images(task: str, rng: torch.Generator) -> Batch:
    """64 training images, moved and turned a little; of both tasks the one or the other."""
    x, labels = load_images("digits", "train")
    rows = torch.arange(len(labels)) if task == BOTH else of_digits(task, labels)
    chosen = rows[torch.randint(len(rows), (64,), generator=rng)]
    return {"pixel_values": train_digits.augment(x[chosen], rng), "labels": labels[chosen]}


@cache
def test_images(task: str) -> Batch:
    """The images that nobody learned from."""
    x, labels = load_images("digits", "test")
    rows = of_digits(task, labels)
    return {"pixel_values": x[rows], "labels": labels[rows]}


def text(task: str, split: str) -> Tensor:
    """The bytes of a task."""
    return text_of(PLAIN if task == "speeches" else task, split)


def texts(task: str, rng: torch.Generator) -> Batch:
    """8 windows of a text; of both tasks 4 of each."""
    if task == BOTH:
        halves = [texts(one, rng)["input_ids"][:4] for one in CASES["texts"].tasks]
        return {"input_ids": torch.cat(halves)}
    here = text(task, "train")
    return {"input_ids": windows(here, torch.randint(len(here) - WINDOW + 1, (8,), generator=rng))}


@cache
def test_texts(task: str) -> Batch:
    """192 windows evenly over the text that nobody learned from."""
    here = text(task, "test")
    return {"input_ids": windows(here, torch.linspace(0, len(here) - WINDOW, 192).long())}


CASES = {
    "digits": Case(
        ("0 to 4", "5 to 9"), 2500, lambda seed: vit_digits(plan("vit-digits", seed, WIDTH, None)),
        ViTForImageClassification, images, test_images, 8,
    ),
    "texts": Case(
        ("novel", "speeches"), 1500, lambda seed: llama(plan("llama", seed, WIDTH, None)),
        LlamaForCausalLM, texts, test_texts, 64,
    ),
}  # fmt: skip


def answers(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits [n, k] that count, and what is right [n]."""
    if "labels" in batch:
        return model(pixel_values=batch["pixel_values"]).logits, batch["labels"]
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits
    return logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten()


def fitted(model: Any, case: Case, task: str, steps: int, rate: float, seed: int, teachers: list[Any]) -> Any:
    """A model after so many steps on a task, by labels or onto the mean of the teachers' probabilities."""
    rng = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        batch = case.batch(task, rng)
        said, right = answers(model, batch)
        if teachers:
            with torch.no_grad():
                right = torch.stack([answers(one, batch)[0].softmax(-1) for one in teachers]).mean(0)
        return F.cross_entropy(said, right)

    return descended(model, loss, steps, rate)


def trained(case: Case, name: str, task: str, seed: int) -> Path:
    """A model of a task, made once."""
    folder = DATA / f"{name}-{seed}-{task.replace(' ', '-')}"
    if not folder.exists():
        start = {case.tasks[0]: 0, case.tasks[1]: 100, BOTH: 200}[task] + seed
        fitted(case.build(start), case, task, case.steps, 2e-3, 1000 + start, []).save_pretrained(folder)
    return folder


@torch.no_grad()
def scored(case: Case, *models: Any) -> dict[str, float]:
    """Loss in nats and accuracy of every task, and their means, of the mean of the models' probabilities."""
    found: dict[str, float] = {}
    for task in case.tasks:
        said = [answers(model, case.held_out(task)) for model in models]
        logits = torch.stack([logits.double().softmax(-1) for logits, _ in said]).mean(0).log()
        found[f"{task}, loss"] = float(F.cross_entropy(logits, said[0][1]))
        found[f"{task}, accuracy"] = float((logits.argmax(-1) == said[0][1]).double().mean())
    for kind in ("loss", "accuracy"):
        found[kind] = sum(found[f"{task}, {kind}"] for task in case.tasks) / 2
    return found


def examples(case: Case, name: str, labels: bool) -> str:
    """Training examples of both tasks in a file: what matching may look at."""
    file = DATA / f"{name}{'-labelled' if labels else ''}.safetensors"
    if not file.exists():
        rng = torch.Generator().manual_seed(7)
        batches = [case.batch(task, rng) for task in case.tasks for _ in range(case.look)]
        whole = {key: torch.cat([b[key] for b in batches]).contiguous() for key in batches[0]}
        save_file(whole if labels else {k: x for k, x in whole.items() if k != "labels"}, file)
    return str(file)


def merges(case: Case, name: str) -> dict[str, dict[str, Any]]:
    """The ways to merge, as arguments of `isomerge.merge`."""
    data, labelled = examples(case, name, False), examples(case, name, True)
    learned = {"learn": data, "steps": STEPS, "align": True, "spaces": "all", "seed": 0}
    rows: dict[str, dict[str, Any]] = {
        "as stored": {"align": False},
        "matched by weights": {"align": True, "spaces": "all"},
        "matched with activations": {"align": True, "spaces": "all", "data": data},
        "learned": learned,
        "learned, activations re-normalised": {**learned, "repair": data},
        "regression on what was learned": {**learned, "method": "regression", "data": data},
    }
    if name == "digits":
        rows["learned with labels"] = {**learned, "learn": labelled, "learn_target": "labels"}
        rows["learned with labels, activations re-normalised"] = {**rows["learned with labels"], "repair": data}
    return rows


def starts(case: Case, name: str) -> dict[str, str]:
    """What is trained on, by name: the merge that was learned, with labels where there are any, or the first model."""
    return {"the learned merge": "learned with labels" if name == "digits" else "learned", "the first model": ""}


def measure(name: str, seed: int, rows: dict[str, Any], save: Callable[[], None]) -> None:
    """All rows of one seed that are missing."""
    case = CASES[name]
    folders = {task: trained(case, name, task, seed) for task in (*case.tasks, BOTH)}
    one, two, both = (case.kind.from_pretrained(folder).eval() for folder in folders.values())

    def keep(row: str, found: dict[str, float]) -> None:
        rows[row] = found
        save()
        print(f"{name} {seed} {row}: loss {found['loss']:.3f}, accuracy {found['accuracy']:.4f}", flush=True)

    controls = {"the first model": (one,), "the second model": (two,), "ensemble": (one, two)}
    for row, models in {**controls, "one model of both": (both,)}.items():
        if row not in rows:
            keep(row, scored(case, *models))
    out = {row: DATA / f"{name}-{seed}-{row.replace(' ', '-').replace(',', '')}" for row in merges(case, name)}
    for row, how in merges(case, name).items():
        if row not in rows or not out[row].exists():
            isomerge.merge([folders[task] for task in case.tasks], out=out[row], overwrite=True, **how)
            keep(row, scored(case, case.kind.from_pretrained(out[row]).eval()))
    for start, row in starts(case, name).items():
        for aim, teachers in (("labels", []), ("the ensemble", [one, two])):
            told = f"{STEPS} steps onto {aim}, from {start}"
            if told not in rows:
                model = case.kind.from_pretrained(out[row] if row else folders[case.tasks[0]])
                keep(told, scored(case, fitted(model, case, BOTH, STEPS, 1e-3, 5000 + seed, teachers)))


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def save() -> None:
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")

    DATA.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().cases:
        for seed in SEEDS:
            measure(name, seed, results.setdefault(name, {}).setdefault(str(seed), {}), save)


if __name__ == "__main__":
    main()
