"""Merging three and five models that were trained from different seeds: one anchor, one after the other, or none.

    python benchmarks/barrier/many.py [--counts 3 5] [--steps 300]

Digits, `benchmarks/data/barrier/vit-digits/seed-*` (made by ``benchmarks/barrier/train.py``). Loss (nats) and
accuracy of the equal-weight merge on the test images, which no matching sees. Rows that are in the results file are
skipped. Writes ``benchmarks/results/barrier/many.json``.

Rows: ``average`` (no alignment), ``anchor`` (every model in turn; the best by the objective, which sees weights
alone, is named), ``sequence`` (models are merged one after the other, each aligned onto the merge of those before
it), ``mean`` (no anchor), each for the block-local spaces and for all spaces; ``activations`` looks at 512 training
images; ``learned`` learns on the training images without their labels, ``--steps`` for every model that
joins and as many for all; ``ensemble`` is the mean of the models' probabilities.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from isomerge.evidence.barrier import ensemble
from isomerge.fusion.fusion import fusion_of
from isomerge.merging.merge_run import run_merge
from isomerge.models.recognised import recognise
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from isomerge.run.writing_run import Output
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.match_options import Matching

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "barrier"
RESULTS = HERE.parent / "results" / "barrier" / "many.json"
TRAIN = str(DATA / "digits" / "train.safetensors")


def merge(models: Sequence[Path], out: Path, **how: Any) -> dict[str, Any]:
    """One merge on disk; the report."""
    fusion = fusion_of(len(models), weights=how.pop("weights", None))
    return run_merge([recognise(model) for model in models], Output(out, overwrite=True), fusion=fusion, **how)


def sequence(models: Sequence[Path], out: Path, spaces: str, **how: Any) -> dict[str, Any]:
    """Models merged one after the other, each aligned onto the merge of those before it."""
    report: dict[str, Any] = {}
    merged = models[0]
    for k, model in enumerate(models[1:], 1):
        into = out if k == len(models) - 1 else out.parent / f"{out.name}-{k}"
        report = merge([merged, model], into, spaces=spaces, weights=[float(k), 1.0], **how)
        merged = into
    return report


def measured(folder: Path, test: Any) -> dict[str, Any]:
    """Loss and accuracy on the test images."""
    found = evaluate(load_module(folder), test, 128)
    return {"loss": found.loss, "accuracy": found.accuracy}


def rows_of(models: Sequence[Path], steps: int) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """What is measured: from a folder to write into to a report."""
    rows: dict[str, Callable[[Path], dict[str, Any]]] = {
        "average": lambda out: merge(models, out, align=False),
    }
    for spaces in ("default", "all"):
        for k, model in enumerate(models):
            order = [model, *(m for m in models if m != model)]
            rows[f"anchor {k}, {spaces}"] = lambda out, o=order, s=spaces: merge(o, out, spaces=s)
        rows[f"sequence, {spaces}"] = lambda out, s=spaces: sequence(models, out, s)
        rows[f"mean, {spaces}"] = lambda out, s=spaces: merge(models, out, spaces=s, anchor="none")
    look = Matching(data=TRAIN, limit=512)
    rows["anchor 0, activations"] = lambda out: merge(models, out, spaces="all", matching=look)
    rows["mean, activations"] = lambda out: merge(models, out, spaces="all", anchor="none", matching=look)
    learn = Matching(learn=TRAIN, settings=LearnSettings(steps=steps))
    rows["anchor 0, learned"] = lambda out: merge(models, out, spaces="all", matching=learn)
    rows["sequence, learned"] = lambda out: sequence(models, out, "all", matching=learn)
    rows["mean, learned"] = lambda out: merge(models, out, spaces="all", anchor="none", matching=learn)
    return rows


def run(count: int, steps: int, results: dict[str, Any]) -> None:
    """All missing rows of one number of models."""
    models = [DATA / "vit-digits" / f"seed-{k}" for k in range(count)]
    entry = results.setdefault(str(count), {"models": [m.name for m in models], "rows": {}})
    config = json.loads((models[0] / "config.json").read_text())
    test = open_data(str(DATA / "digits" / "test.safetensors"), models[0], config=config)
    if "ensemble" not in entry:
        entry["ensemble"] = asdict(ensemble([load_module(m) for m in models], test, 128))
        entry["ends"] = [measured(m, test) for m in models]
    for name, row in rows_of(models, steps).items():
        if name in entry["rows"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            report = row(Path(folder) / "out")
            seconds = time.perf_counter() - began
            found = measured(Path(folder) / "out", test)
        about = report.get("mean", {})
        kept = {k: about[k] for k in ("objective", "anchors", "sequence", "gain", "learned") if k in about}
        entry["rows"][name] = {**found, "seconds": round(seconds, 1), **kept}
        if anchors := kept.get("anchors"):
            for anchor in anchors:
                anchor["model"] = Path(anchor["model"]).name
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(
            f"{count} {name:22s} loss {found['loss']:.4f} accuracy {found['accuracy']:.4f} {seconds:.1f} s",
            flush=True,
        )


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"steps": args.steps}
    for count in args.counts:
        run(count, args.steps, results)


if __name__ == "__main__":
    main()
