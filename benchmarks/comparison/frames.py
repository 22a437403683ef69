"""What the frame does in which models are merged: the anchor's own, the balanced one, random ones.

    python -m benchmarks.comparison.frames          # writes results/frames.json and the table of docs/lab/comparison.md

Fisher's diagonal, and the magnitudes by which TIES, DARE and others choose entries, are of a frame: turned together,
two models have other diagonals and other large entries, while their mean and every function stay what they are. Methods
run on the fine-tunes of `benchmarks.comparison`, aligned onto their ancestor, with the heads of all models in
the frame in which the ancestor was trained, balanced (queries against keys, values against outputs: what isomerge
calls the canonical gauge), in the eigenframe of their pooled Gram, turned by random rotations, and by random matrices of condition 4. Streams stay as they
are: fine-tunes have gains of their own, between which nothing can be turned in all of them alike.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.comparison.__main__ import ALIGNED, PAGE, SEEDS, merged, moved
from benchmarks.comparison.models import PLAIN, TASKS, examples, score, trained
from isomerge.evidence.law import random_alignment
from isomerge.fusion.registry import method
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.gram import self_grams
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import Model, recognise
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import elements_of

RESULTS = Path(__file__).parents[1] / "results" / "frames.json"
OWN, BALANCED, EIGEN, TURNED, SHEARED = "own", "balanced", "eigen", "turned", "sheared"
FRAMES = (OWN, BALANCED, EIGEN, TURNED, SHEARED)
FAMILY = "vit"
METHODS = (
    "linear", "task_arithmetic", "ties", "dare_ties", "della", "breadcrumbs", "sce", "emr", "consensus", "pcb", "fisher", "regmean",
    "svd_task_arithmetic", "tsv_m", "wudi",
)  # fmt: skip
"""Means, which no frame changes, as a control; what chooses entries; diagonals and Grams; spectra of matrices."""
START, END = "<!-- frames: begin -->", "<!-- frames: end -->"


def eigenframe(spec: Spec, models: list[Model]) -> Alignment:
    """The balanced frame of the first model, turned so that the sum of all models' Grams of a head, of what writes it
    and of what reads it, is diagonal: its coordinates are the principal ones, from the weakest to the strongest."""
    weights = [{block: model.assemble(block, torch.float64) for block in model.blocks} for model in models]
    balance, _ = canonical_gauge(spec, weights[0])
    moved = [weights[0], *(balance.applied(part) for part in weights[1:])]
    turn: dict[str, torch.Tensor] = {}
    for key in balance:
        name = key.partition("[")[0]
        if name not in spec.spaces:
            continue
        unit = {block for block in models[0].blocks if key in elements_of(spec, block)}
        grams = [self_grams(spec, name, {b: part[b] for b in unit}) for part in moved]
        pooled = torch.stack([side for both in grams if both is not None for side in both]).sum(0)
        turn[key] = torch.linalg.eigh(pooled)[1].mT.contiguous()
    return Alignment(spec, turn) @ balance


def into(frame: str, models: list[Path], seed: int) -> Any:
    """The element that takes the ancestor, the first of the models, to a frame; None for its own."""
    if frame == OWN:
        return None
    model = recognise(models[0])
    spec = select_spaces(model.spec, "qk,ov").spec
    if frame == EIGEN:
        return eigenframe(spec, [model, *map(recognise, models[1:])])
    if frame == BALANCED:
        blocks = {block: model.assemble(block, torch.float64) for block in model.blocks}
        return canonical_gauge(spec, blocks)[0]
    rng, condition = torch.Generator().manual_seed(seed), 1.0 if frame == TURNED else 4.0
    return random_alignment(spec, model.blocks, rng, ("qk", "ov"), condition=condition)


def framed(frame: str, models: list[Path], element: Any) -> list[Path]:
    """All models in a frame."""
    if element is None:
        return models
    found = []
    for model in models:
        out = model.with_name(f"{model.name}-{frame}")
        isomerge.apply(element, model, out=out, overwrite=True)
        found.append(out)
    return found


def measure(seed: int, found: dict[str, Any], save: Any) -> None:
    """All frames and methods of one seed."""
    tasks, folders = TASKS[FAMILY], trained(FAMILY, seed)
    data = examples(FAMILY, tasks, seed)
    here = [folders[PLAIN], *(moved(FAMILY, folders[task], folders[PLAIN], ALIGNED, data) for task in tasks)]
    for frame in FRAMES:
        rows = found.setdefault(frame, {})
        missing = [name for name in METHODS if name not in rows]
        if not missing:
            continue
        base, *models = framed(frame, here, into(frame, here, seed))
        for name in missing:
            rows[name] = score(FAMILY, merged(method(name), models, base, data, {}), tasks)
            save()
            print(seed, frame, name, rows[name], flush=True)


def table(results: dict[str, Any]) -> str:
    """Methods, from where the frame matters most; means and deviations over seeds."""
    rows = []
    for name in next(iter(results.values()))[OWN]:
        every = [[one[frame][name] for one in results.values() if name in one.get(frame, {})] for frame in FRAMES]
        values = [[100 * row["mean"] for row in some] for some in every]
        means = [statistics.fmean(some) for some in values]
        rows.append((max(means) - min(means), name, values))
    lines = ["| method | own frame | balanced | eigenframe | turned | sheared |", "|---|---|---|---|---|---|"]
    for _, name, values in sorted(rows, reverse=True):
        shown = [
            f"{statistics.fmean(some):.1f}" + (f" ± {statistics.stdev(some):.1f}" if len(some) > 1 else "")
            for some in values
        ]
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and write the table."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def save() -> None:
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")

    for seed in SEEDS:
        measure(seed, results.setdefault(str(seed), {}), save)
    page = PAGE.read_text()
    head, rest = page.split(START)
    PAGE.write_text(f"{head}{START}\n\n{table(results)}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
