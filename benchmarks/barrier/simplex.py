"""The loss inside the simplex between three and five models from different seeds, before and after learning.

    python benchmarks/barrier/simplex.py [--counts 3 5] [--steps 300]       # results/barrier/simplex.json

Digits ViTs, merged without an anchor (``--anchor none --spaces all``): matched by weights, and then learned on the training
images without labels. The loss on the test images, which no matching sees, is measured at the corners, in the middle of
every edge, at the barycentre, and at `DRAWN` random points inside (uniform in the simplex). An excess is the loss less
what lies between the corners' own. Rows that are in the results are skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import isomerge
from benchmarks.barrier.many import DATA, RESULTS, TRAIN
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.losses import evaluate
from isomerge.solve.learn.learner import Learned
from isomerge.solve.learn.simplex import MatchedSimplex, judged_points
from isomerge.solve.many import mean_solutions
from isomerge.symmetry.stage import Stage

OUT = RESULTS.with_name("simplex.json")
DRAWN = 40


def points_of(count: int) -> dict[str, list[list[float]]]:
    """Barycentric coordinates by kind; random ones are the same in every run."""
    rng = torch.Generator().manual_seed(count)
    gaps = torch.rand(DRAWN, count, generator=rng, dtype=torch.float64).clamp_min(1e-12).log().neg()
    middle = [1 / count] * count
    return {
        "corners": torch.eye(count).tolist(),
        "edges": [point for point in judged_points(middle) if point != middle],
        "inside": [*(gaps / gaps.sum(1, keepdim=True)).tolist(), middle],
    }


def measured(simplex: MatchedSimplex, stages: Sequence[Stage] | None, test: Any) -> dict[str, Any]:
    """Losses and accuracies at all points; excesses over what lies between the corners, the barycentre's last."""
    losses: dict[str, list[float]] = {}
    accuracies: dict[str, list[float]] = {}
    with torch.no_grad():
        for kind, points in points_of(len(simplex.shares)).items():
            for point in points:
                with simplex.standing_at(point, stages):
                    found = evaluate(simplex.module, test, 256)
                losses.setdefault(kind, []).append(found.loss)
                accuracies.setdefault(kind, []).append(found.accuracy or 0.0)
    ends = losses["corners"]
    excess = {
        kind: [
            loss - sum(w * end for w, end in zip(point, ends, strict=True))
            for loss, point in zip(losses[kind], points, strict=True)
        ]
        for kind, points in points_of(len(ends)).items()
        if kind != "corners"
    }
    return {
        "corners": {"loss": statistics.fmean(ends), "accuracy": statistics.fmean(accuracies["corners"])},
        "barycentre": {"excess": excess["inside"][-1], "accuracy": accuracies["inside"][-1]},
        "edges": {"excess": excess["edges"], "worst": max(excess["edges"])},
        "inside": {
            "mean": statistics.fmean(excess["inside"][:-1]), "worst": max(excess["inside"]),
            "worst_accuracy": min(accuracies["inside"]),
        },
    }  # fmt: skip


def run(count: int, steps: int) -> dict[str, Any]:
    """Both rows of so many models: as they are matched before they are learned, and after."""
    models = [DATA / "vit-digits" / f"seed-{k}" for k in range(count)]
    config = json.loads((models[0] / "config.json").read_text())
    test = open_data(str(DATA / "digits" / "test.safetensors"), models[0], config=config)
    rows: dict[str, Any] = {}
    learn = mean_solutions.learn_together

    def watched(simplex: MatchedSimplex, *more: Any) -> Learned:
        """Learn as ever, and measure the simplex where its models are in memory: no file holds them all."""
        rows["matched by weights"] = measured(simplex, None, test)
        found = learn(simplex, *more)
        spec = simplex.learnable()[0]
        stages = [Stage(spec, {key: x.float() for key, x in one.items()}) for one in found.elements]
        rows["learned"] = measured(simplex, stages, test)
        return found

    mean_solutions.learn_together = watched
    try:
        out = DATA / "aligned" / f"simplex-{count}"
        isomerge.merge(
            models,
            out=out,
            anchor="none",
            spaces="all",
            align=True,
            learn=TRAIN,
            steps=steps,
            seed=0,
            overwrite=True,
        )
    finally:
        mean_solutions.learn_together = learn
    return rows


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for count in asked.counts:
        here = results.setdefault(str(count), {})
        if str(asked.steps) in here:
            continue
        here[str(asked.steps)] = run(count, asked.steps)
        OUT.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        for row, found in here[str(asked.steps)].items():
            print(count, asked.steps, row, {k: found[k] for k in ("corners", "barycentre", "inside")}, flush=True)


if __name__ == "__main__":
    main()
