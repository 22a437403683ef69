"""Table 1: MiniLM tuned on every domain of both tasks, merged in and out of domain, and tested.

All models of a task and a seed start from one head, drawn by the seed: what is merged must be able to agree on what a
label is (Jin et al. 2023 call it "same head initialisation"). Order of the data and dropout are drawn by seed and
domain. All weights are tuned by AdamW in float32, with linear warm-up and decay, and those of the last step are kept:
nothing is chosen by the test data. Models are kept in `benchmarks/data/paper/text`.

The paper matches attention alone in its Table 1, and copies classifiers (`--spaces paper-no-ffn --heads copy`): a
merged body is tested on a domain with the classifier of the model that was tuned there. That is the column
`published`; `paper` matches FFNs as well. Every merge is tested with the members' own classifiers, as there, and with
the merged one. Cells are `TASK/seed-N/end/DOMAIN`,
`TASK/seed-N/ensemble/GROUP` and `TASK/seed-N/GROUP/METHOD/COLUMN`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import isomerge
from benchmarks.harness import Benchmark, Cells, quiet
from benchmarks.paper import trained
from benchmarks.paper.text import (
    BASE,
    IGNORED,
    NEUTRAL,
    TASKS,
    Encoded,
    Group,
    Task,
    batches,
    encode,
    groups,
    load,
    padded,
)

Heads = dict[str, tuple[Tensor, Tensor]]
"""Class probabilities [n, labels] and targets [n], by the name of the classifier."""
MODELS = trained.MADE / "text"
BATCH = 32
COLUMNS: dict[str, dict[str, Any] | None] = {  # what `isomerge.align` is told
    "none": None,
    "published": {"spaces": "paper-no-ffn"},
    "paper": {"spaces": "paper"},
    "ours": {},
    "activations": {"data": "unlabelled", "functional": False},
}
"""Without matching; the paper's of attention alone, as in its Table 1, and of all; ours by weights alone (the default spaces); ours by weights and activations (all
spaces).

Neurons are not matched once more by the cost of averaging them (`functional`): neurons of fine-tunes of one base do
not move."""
METHODS = {"simple": "linear", "fisher": "fisher", "regmean": "regmean"}
"""Row -> method of `isomerge methods`, and the kind of its statistics."""


@dataclass(frozen=True)
class Preset:
    """Sizes and hyper-parameters of a whole run of the benchmark."""

    name: str
    train: int
    """Sentences per domain that a model is tuned on, at most."""
    test: int
    """Sentences per domain that are kept for tests; none of their documents is trained on."""
    scored: int
    """Of these, how many every merged model is tested on."""
    epochs: int
    lr: float
    batch: int
    length: int
    """Word pieces per sentence; longer ones are cut."""
    seeds: tuple[int, ...]
    statistics: int
    """Training sentences per model for Grams and for matching by activations."""
    fisher: int
    """Training sentences per model for diagonal Fishers: each is run backwards alone."""
    device: str = "cpu"
    warmup: float = 0.06
    """Share of the steps, as in the paper."""


PRESETS = {
    "table1": Preset(
        "cpu", train=1600, test=400, scored=200, epochs=2, lr=1e-4, batch=16, length=48, seeds=(0, 1, 2),
        statistics=128, fisher=64,
    ),
    "table1-gpu": Preset(
        "gpu", train=20000, test=1000, scored=1000, epochs=5, lr=5e-5, batch=16, length=128, seeds=(0, 1, 2, 3, 4),
        statistics=2048, fisher=1024, device="cuda",
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------ fine-tuning


def kind(task: Task) -> Any:
    from transformers import BertForSequenceClassification, BertForTokenClassification

    return BertForTokenClassification if task.tokens else BertForSequenceClassification


@dataclass(frozen=True)
class Run:
    """One model to tune."""

    preset: Preset
    task: Task
    domain: str
    seed: int

    @property
    def folder(self) -> Path:
        return MODELS / self.preset.name / self.task.name / f"{self.domain}-seed-{self.seed}"

    @property
    def statistics(self) -> Path:
        """Where what is gathered on it is kept: not in the model's folder, whose files are copied by merges."""
        return self.folder.parents[1] / "statistics" / self.task.name / self.folder.name

    def sentences(self) -> list[Encoded]:
        train, _ = load(self.task.name, self.preset.test)[self.domain]
        return encode(self.task, train[: self.preset.train], self.preset.length)

    def model(self) -> Path:
        """The model, tuned on the first call, and when the settings of its tuning are others."""
        names = ("train", "test", "epochs", "lr", "batch", "length", "warmup")
        return trained.kept(self.folder, self._tuned, {name: getattr(self.preset, name) for name in names})

    def _tuned(self) -> tuple[Any, list[float]]:
        shutil.rmtree(self.statistics, ignore_errors=True)
        return tune(self)


def untuned(run: Run) -> Any:
    """MiniLM with a fresh head for the task's labels, drawn by the seed."""
    names = dict(enumerate(run.task.labels))
    torch.manual_seed(run.seed)
    return kind(run.task).from_pretrained(
        BASE, num_labels=len(names), id2label=names, label2id={n: i for i, n in names.items()}, dtype=torch.float32
    )


def tune(run: Run) -> tuple[Any, list[float]]:
    """The model after the last step, and the loss of every step."""
    preset, sentences, model = run.preset, run.sentences(), untuned(run).to(run.preset.device)
    steps = preset.epochs * -(-len(sentences) // preset.batch)
    warmup = round(preset.warmup * steps)
    rates = [
        preset.lr * (step / warmup if step < warmup else (steps - step) / max(1, steps - warmup))
        for step in range(steps)
    ]
    drawn = 1000 * run.seed + run.task.domains.index(run.domain)
    order, lengths = random.Random(drawn), [len(s.ids) for s in sentences]
    torch.manual_seed(drawn)  # dropout
    rows = chain.from_iterable(batches(lengths, preset.batch, order) for _ in range(preset.epochs))

    def loss() -> Tensor:
        tensors = padded(run.task, [sentences[i] for i in next(rows)])
        tensors = {name: tensor.to(preset.device) for name, tensor in tensors.items()}
        labels = tensors.pop("labels")
        return F.cross_entropy(model(**tensors).logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)

    losses = trained.descend(model, loss, rates, clip=1.0, weight_decay=0.01, fused=True)
    return model.cpu(), losses


def tune_all(preset: Preset) -> None:
    """Every model; whole seeds first, so that a run that was stopped has something to merge."""
    quiet()
    for seed in preset.seeds:
        for task in TASKS.values():
            for domain in task.domains:
                Run(preset, task, domain, seed).model()


# ---------------------------------------------------------------------------------------------- matching and merging


@dataclass(frozen=True)
class Moved:
    """A member of a group in the anchor's coordinates."""

    run: Run
    folder: Path
    seconds: float = 0.0
    distance: tuple[float, float] | None = None
    """To the anchor before and after, Frobenius; none for the anchor."""


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What work returns, and the seconds it took: of the processor, which may be shared, or of the clock with
    another device."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    return work(), clock() - start


def unlabelled(runs: Sequence[Run]) -> list[dict[str, Tensor]]:
    """Training sentences of all members in equal shares, without labels: what activations are read on."""
    share = runs[0].preset.statistics // len(runs)
    tensors = padded(runs[0].task, [s for run in runs for s in run.sentences()[:share]])
    del tensors["labels"]
    return [tensors]


def match(runs: Sequence[Run], column: str, work: Path) -> list[Moved]:
    """Every member moved onto the first; stored anew in `work` where something is matched."""
    how, anchor = COLUMNS[column], Moved(runs[0], runs[0].model())
    if how is None:
        return [anchor, *(Moved(run, run.model()) for run in runs[1:])]
    options = {**how, "data": unlabelled(runs)} if "data" in how else how
    moved = [anchor]
    for run in runs[1:]:
        out = work / run.domain
        aligning = partial(isomerge.align, run.model(), onto=anchor.folder, out=out, align=True, **options)
        (_, report), seconds = timed(aligning, run.preset.device)
        moved.append(Moved(run, out, seconds, (report["distance"]["before"], report["distance"]["after"])))
    return moved


@lru_cache(maxsize=1)
def matched(runs: tuple[Run, ...], column: str) -> tuple[list[Moved], tempfile.TemporaryDirectory[str]]:
    """The members of a group, matched once for all methods; the folder lives as long as this is the last one."""
    work = tempfile.TemporaryDirectory(prefix="table1-", ignore_cleanup_errors=True)
    return match(runs, column, Path(work.name)), work


def statistics(model: Moved, sort: str, work: Path) -> tuple[Path, float]:
    """A model's file of `isomerge.stats` on its own training sentences, and the seconds it took.

    Of models as stored it is kept: the first of a pair is the same in every column. Fishers are taken of the moved
    model, since the diagonal of one in other coordinates is not the diagonal moved.
    """
    run = model.run
    count = run.preset.fisher if sort == "fisher" else run.preset.statistics
    folder = run.statistics if model.folder == run.folder else work / f"{run.domain}-statistics"
    out = folder / f"{sort}-{count}.safetensors"
    record = out.with_suffix(".seconds")
    if not record.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        gathering = partial(
            isomerge.stats, model.folder, data=[padded(run.task, run.sentences()[:count])], out=out, kinds=sort,
            device=run.preset.device, seed=run.seed, overwrite=True,
            fisher_labels="sampled" if sort == "fisher" else None,
        )  # fmt: skip
        record.write_text(f"{timed(gathering, run.preset.device)[1]:.3f}\n")
    return out, float(record.read_text())


def merge(moved: Sequence[Moved], method: str, work: Path) -> tuple[Path, dict[str, float]]:
    files = [statistics(model, method, work) for model in moved] if method != "simple" else []
    out, folders = work / f"merged-{method}", [model.folder for model in moved]
    settings = {"method": METHODS[method], "stats": [file for file, _ in files], "align": False}
    merging = partial(isomerge.merge, folders, out=out, overwrite=True, **settings)
    _, seconds = timed(merging, moved[0].run.preset.device)
    return out, {
        "matching": sum(model.seconds for model in moved),
        "statistics": sum(took for _, took in files),
        "merging": seconds,
    }


# ---------------------------------------------------------------------------------------------------------- scoring


def f1(targets: Tensor, predicted: Tensor) -> dict[str, float]:
    """Macro and micro F1 in percent of predicted classes, both int64 [n].

    Macro is the mean over the classes that occur among the targets: a class that a domain lacks has no F1 there.
    Micro counts all predictions, and is the accuracy where every item has one class.
    """
    from sklearn.metrics import f1_score

    classes = sorted(set(targets.tolist()))
    rows: Any = (targets.numpy(), predicted.numpy())
    macro = f1_score(*rows, labels=classes, average="macro", zero_division=0)  # pyright: ignore
    return {"macro": 100 * float(macro), "micro": 100 * float(f1_score(*rows, average="micro"))}


def scores(predictions: tuple[Tensor, Tensor]) -> dict[str, float]:
    probabilities, targets = predictions
    return f1(targets, probabilities.argmax(-1))


def head_of(folder: Path) -> tuple[Tensor, Tensor]:
    """The classifier of a stored model: weight [labels, width] and bias [labels]."""
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "pt") as stored:
        return stored.get_tensor("classifier.weight").float(), stored.get_tensor("classifier.bias").float()


def features(task: Task, model: Any, sentences: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """What the classifier reads, float32 [n, width], and the targets, int64 [n]: of sentences, or of their words."""
    order = sorted(sentences, key=lambda sentence: len(sentence.ids))
    inputs, targets = [], []
    for start in range(0, len(order), BATCH):
        tensors = padded(task, order[start : start + BATCH])
        labels = tensors.pop("labels")
        with torch.no_grad():
            out = model.base_model(**{name: tensor.to(model.device) for name, tensor in tensors.items()})
        kept = labels != IGNORED
        inputs.append((out.last_hidden_state if task.tokens else out.pooler_output).cpu()[kept])
        targets.append(labels[kept])
    return torch.cat(inputs), torch.cat(targets)


def predictions(
    preset: Preset, task: Task, folder: Path, domains: Sequence[str], heads: Mapping[str, Path]
) -> dict[str, Heads]:
    """What a model says of a task's test sentences, by domain and classifier.

    Args:
        preset: how many sentences, and how long.
        task: whose.
        folder: the model; its own classifier is called `merged`.
        domains: that are tested.
        heads: further classifiers to put on the same body, by name: those of these stored models.
    """
    model = kind(task).from_pretrained(folder, dtype=torch.float32).eval().to(preset.device)
    weights = {"merged": head_of(folder), **{name: head_of(path) for name, path in heads.items()}}
    every = {}
    for domain in domains:
        tested = encode(task, load(task.name, preset.test)[domain][1][: preset.scored], preset.length)
        inputs, targets = features(task, model, tested)
        every[domain] = {
            name: ((inputs @ weight.T + bias).softmax(-1), targets) for name, (weight, bias) in weights.items()
        }
    return every


# ------------------------------------------------------------------------------------------------------------ cells


@lru_cache(maxsize=8)
def of_end(run: Run) -> dict[str, tuple[Tensor, Tensor]]:
    """What a model says of all domains of its task, with its own classifier."""
    domains = (*run.task.domains, *run.task.held_out)
    return {d: h["merged"] for d, h in predictions(run.preset, run.task, run.model(), domains, {}).items()}


def end(run: Run) -> dict[str, Any]:
    return {domain: scores(p) for domain, p in of_end(run).items()}


def ensemble(runs: Sequence[Run], group: Group) -> dict[str, Any]:
    """F1 by domain of the mean of the members' probabilities."""
    members = [of_end(run) for run in runs]
    return {
        domain: scores((torch.stack([m[domain][0] for m in members]).mean(0), members[0][domain][1]))
        for domain in (*group.inside, *group.outside)
    }


def merged(runs: tuple[Run, ...], group: Group, method: str, column: str) -> dict[str, Any]:
    """One merge: F1 by domain with the merged classifier and the members' own, distances and seconds."""
    moved, work = matched(runs, column)
    out, seconds = merge(moved, method, Path(work.name))
    heads = {model.run.domain: model.folder for model in moved}
    every = predictions(runs[0].preset, group.task, out, (*group.inside, *group.outside), heads)
    shutil.rmtree(out)
    return {
        "scores": {domain: scores(by_head["merged"]) for domain, by_head in every.items()},
        "own_head": {domain: scores(every[domain][domain]) for domain in group.inside},
        "distances": [model.distance for model in moved if model.distance],
        "seconds": seconds,
    }


def key(task: Task, seed: int, *rest: str) -> str:
    """The key of a cell: `TASK/seed-N/...`."""
    return "/".join((task.name, f"seed-{seed}", *rest))


def cells(preset: Preset) -> Cells:
    """Everything that a preset measures, seed by seed."""
    every: dict[str, Callable[[], Any]] = {}
    for seed in preset.seeds:
        for task in TASKS.values():
            runs = {domain: Run(preset, task, domain, seed) for domain in task.domains}
            every |= {key(task, seed, "end", domain): partial(end, run) for domain, run in runs.items()}
            for group in groups(task):
                members = tuple(runs[domain] for domain in group.members)
                every[key(task, seed, "ensemble", group.name)] = partial(ensemble, members, group)
                for column in COLUMNS:
                    for method in METHODS:
                        name = key(task, seed, group.name, method, column)
                        every[name] = partial(merged, members, group, method, column)
    return {name: {"work": work} for name, work in every.items()}


def measure(work: Callable[[], Any]) -> Any:
    return work()


def said(cell: Mapping[str, Any]) -> str:
    return ", ".join(f"{domain} {f['macro']:.1f}" for domain, f in cell.get("scores", cell).items())


def benchmark(name: str) -> Benchmark:
    """The benchmark of a preset, by the name of its results."""
    preset = PRESETS[name]
    settings = {key: setting for key, setting in asdict(preset).items() if key != "device"} | {"neutral": NEUTRAL}
    return Benchmark(
        f"paper/{name}",
        lambda asked: cells(preset),
        measure,
        settings=settings,
        before=lambda asked: quiet(),
        said=said,
    )


BENCHMARKS = {name: benchmark(name) for name in PRESETS}
