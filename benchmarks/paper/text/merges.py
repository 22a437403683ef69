"""Matching, statistics and merging with the public API, as a user would: align once, merge in three ways."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import isomerge
from benchmarks.paper.text import data
from benchmarks.paper.text.finetune import Run
from isomerge.observe.data.examples import Examples

COLUMNS: dict[str, dict[str, Any] | None] = {  # what `isomerge.align` is given
    "none": None,
    "paper": {"spaces": "paper"},
    "ours": {},
    "activations": {"data": "unlabelled", "functional": False},
}
"""Without matching; the paper's; ours by weights alone (the default spaces); ours by weights and activations (all
spaces).

Neurons are not matched once more by the cost of averaging them (`functional`): neurons of fine-tunes of one base do
not move."""
METHODS = {"simple": ("linear", None), "fisher": ("fisher", "fisher"), "regmean": ("regmean", "regmean")}
"""Row -> (method of `isomerge methods`, kind of statistics)."""


@dataclass(frozen=True)
class Moved:
    """A member of a group in the anchor's coordinates."""

    run: Run
    folder: Path
    seconds: float = 0.0
    distance: tuple[float, float] | None = None
    """To the anchor before and after, Frobenius; none for the anchor."""


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """A result, and the seconds it took: of the processor, which may be shared, or of the clock with another
    device."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    return work(), clock() - start


def unlabelled(runs: Sequence[Run]) -> Examples:
    """Training sentences of all members in equal shares, without labels: what activations are read on."""
    share = runs[0].preset.statistics // len(runs)
    return data.examples(runs[0].task, [s for r in runs for s in r.train_sentences()[:share]], labelled=False)


def match(runs: Sequence[Run], column: str, work: Path) -> list[Moved]:
    """Every member moved onto the first; stored anew in `work` where something is matched."""
    how = COLUMNS[column]
    if how is None:
        return [Moved(run, run.folder) for run in runs]
    options = {**how, "data": unlabelled(runs)} if "data" in how else dict(how)
    moved = [Moved(runs[0], runs[0].folder)]
    for run in runs[1:]:
        out = work / run.domain
        (_, report), seconds = timed(
            lambda run=run, out=out: isomerge.align(
                run.folder, onto=runs[0].folder, out=out, align=True, **options
            ),
            run.preset.device,
        )
        moved.append(Moved(run, out, seconds, (report["distance"]["before"], report["distance"]["after"])))
    return moved


@lru_cache(maxsize=32)
def own_examples(run: Run, count: int) -> Examples:
    """The first training sentences of a model, with labels."""
    return data.examples(run.task, run.train_sentences()[:count])


def statistics(model: Moved, kind: str, work: Path) -> tuple[Path, float]:
    """A model's file of `isomerge.stats` on its own training sentences, and the seconds it took.

    Of models as stored it is kept: the first of a pair is the same in every column. Fishers are taken of the moved
    model, since the diagonal of one in other coordinates is not the diagonal moved.
    """
    run = model.run
    count = run.preset.fisher if kind == "fisher" else run.preset.statistics
    folder = run.statistics if model.folder == run.folder else work / f"{run.domain}-statistics"
    out = folder / f"{kind}-{count}.safetensors"
    record = out.with_suffix(".seconds")
    if not record.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        labels = "sampled" if kind == "fisher" else None
        _, seconds = timed(
            lambda: isomerge.stats(
                model.folder, data=own_examples(run, count), out=out, kinds=kind, device=run.preset.device,
                seed=run.seed, overwrite=True, fisher_labels=labels,
            ),
            run.preset.device,
        )  # fmt: skip
        record.write_text(f"{seconds:.3f}\n")
    return out, float(record.read_text())


def merge(moved: Sequence[Moved], method: str, work: Path) -> tuple[Path, dict[str, float]]:
    """The merged model, and seconds by stage."""
    name, kind = METHODS[method]
    files = [statistics(model, kind, work) for model in moved] if kind else []
    out = work / f"merged-{method}"
    shutil.rmtree(out, ignore_errors=True)
    _, seconds = timed(
        lambda: isomerge.merge(
            [model.folder for model in moved], out=out, method=name, stats=[path for path, _ in files], align=False
        ),
        moved[0].run.preset.device,
    )
    return out, {
        "matching": sum(model.seconds for model in moved),
        "statistics": sum(took for _, took in files),
        "merging": seconds,
    }
