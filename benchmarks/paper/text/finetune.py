"""Fine-tune MiniLM on every domain of both tasks, from several seeds.

    python -m benchmarks.paper.text.finetune                     # everything missing; about an hour on one slow core
    python -m benchmarks.paper.text.finetune --preset gpu        # more data, longer, on a device
    python -m benchmarks.paper.text.finetune --task vader --list

A model goes to `benchmarks/data/paper/text/<preset>/<task>/<domain>-seed-<n>`, in the layout of Hugging Face, with
`training.json` beside it; the folder appears when it is complete, and what is there is kept. All models of a task
and a seed start from one head, drawn by the seed: what is merged must be able to agree on what a label is (Jin et
al. 2023 call it "same head initialisation"). Order of the data and dropout are drawn by seed and domain. All
weights are tuned by AdamW in float32, with linear warm-up and decay, and those of the last step are kept: nothing
is chosen by the test data.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.paper.results import versions
from benchmarks.paper.text import data
from benchmarks.paper.text.settings import BASE, MODELS, PRESETS, Preset

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

TRAINING = ("train", "test", "epochs", "lr", "batch", "length", "warmup")
"""The settings that a trained model depends on; `test` decides which documents are trained on."""


@dataclass(frozen=True)
class Run:
    """One model to train."""

    preset: Preset
    task: data.Task
    domain: str
    seed: int

    @property
    def folder(self) -> Path:
        """Where the model goes."""
        return MODELS / self.preset.name / self.task.name / f"{self.domain}-seed-{self.seed}"

    @property
    def statistics(self) -> Path:
        """Where what is gathered on it is kept: not in the model's folder, whose files are copied by merges."""
        return self.folder.parents[1] / "statistics" / self.task.name / self.folder.name

    @property
    def done(self) -> bool:
        """Whether it was trained, and with these settings."""
        report = self.folder / "training.json"
        if not report.is_file():
            return False
        stored = json.loads(report.read_text())["preset"]
        return all(stored.get(name) == getattr(self.preset, name) for name in TRAINING)

    def train_sentences(self) -> list[data.Encoded]:
        """What it is tuned on."""
        train, _ = data.load(self.task.name, self.preset.test)[self.domain]
        return data.encode(self.task, train[: self.preset.train], self.preset.length)


def runs(preset: Preset, tasks: list[str]) -> Iterator[Run]:
    """Every model of these tasks; whole seeds first, so that a stopped run has something to merge."""
    for seed in preset.seeds:
        for name in tasks:
            for domain in data.TASKS[name].domains:
                yield Run(preset, data.TASKS[name], domain, seed)


def build(run: Run) -> PreTrainedModel:
    """MiniLM with a fresh head for the task's labels, drawn by the seed."""
    import torch
    from transformers import BertForSequenceClassification, BertForTokenClassification

    kind = BertForTokenClassification if run.task.tokens else BertForSequenceClassification
    names = dict(enumerate(run.task.labels))
    torch.manual_seed(run.seed)
    return kind.from_pretrained(
        BASE, num_labels=len(names), id2label=names, label2id={n: i for i, n in names.items()}, dtype=torch.float32
    )


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy over what is labelled."""
    from torch.nn import functional as F

    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=data.IGNORED)


def tune(run: Run) -> tuple[PreTrainedModel, list[float]]:
    """The model after the last step, and the mean training loss of every epoch."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    preset, sentences = run.preset, run.train_sentences()
    model = build(run).train()
    torch.nn.Module.to(model, preset.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.lr, weight_decay=0.01, fused=True)
    lengths = [len(s.ids) for s in sentences]
    steps = preset.epochs * ((len(sentences) + preset.batch - 1) // preset.batch)
    schedule = get_linear_schedule_with_warmup(optimizer, round(preset.warmup * steps), steps)
    drawn = 1000 * run.seed + run.task.domains.index(run.domain)
    order = random.Random(drawn)
    torch.manual_seed(drawn)  # dropout
    losses: list[float] = []
    start, step = time.perf_counter(), 0
    for _ in range(preset.epochs):
        total = 0.0
        for batch in data.batches(lengths, preset.batch, order):
            tensors = {
                k: v.to(preset.device) for k, v in data.padded(run.task, [sentences[i] for i in batch]).items()
            }
            labels = tensors.pop("labels")
            loss = loss_of(model(**tensors).logits, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            total, step = total + float(loss.detach()) * len(batch), step + 1
            if step % 25 == 0 or step == steps:
                took = time.perf_counter() - start
                print(f"  step {step} of {steps}, {took:.0f} s, loss {float(loss.detach()):.3f}", flush=True)
        losses.append(total / len(sentences))
    torch.nn.Module.to(model, "cpu")
    return model.eval(), losses


def train(run: Run) -> None:
    """Tune and store one model, complete or not at all."""
    print(f"{run.folder}", flush=True)
    start = time.perf_counter()
    model, losses = tune(run)
    beside = run.folder.with_name(f".{run.folder.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (BASE / name).is_file():
            shutil.copyfile(BASE / name, beside / name)
    report = {
        "domain": run.domain,
        "seed": run.seed,
        "preset": run.preset.settings(),
        "losses": losses,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": versions(),
    }
    (beside / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    for old in (run.folder, run.statistics):
        shutil.rmtree(old, ignore_errors=True)
    beside.rename(run.folder)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--task", choices=data.TASKS, action="append")
    parser.add_argument("--list", action="store_true", help="what there is to train, and what is done")
    options = parser.parse_args()
    found = list(runs(PRESETS[options.preset], options.task or list(data.TASKS)))
    for run in found:
        if options.list:
            print(f"{'done   ' if run.done else 'missing'} {run.folder}")
        elif not run.done:
            train(run)
    print(f"{sum(run.done for run in found)} of {len(found)} models are there")


if __name__ == "__main__":
    main()
