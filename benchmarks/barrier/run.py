"""The loss barrier between models that were trained from different seeds, by kind of matching.

    python benchmarks/barrier/run.py FAMILY [--pairs 0-1 0-2] [--rows stored paper all activations ...] [--width D]

For every pair, the second model is aligned onto the first in every way (a row), and loss and accuracy are measured
on test data along the line between them. Rows of pairs that are already in the results file are skipped, so that a
run goes on where it stopped. Writes ``benchmarks/results/barrier/FAMILY.json``. The models come
from ``benchmarks/barrier/train.py``. Matching never sees test data.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import isomerge
from isomerge.errors import IsomergeError

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "barrier"
RESULTS = HERE.parent / "results" / "barrier"
IMAGES = {"vit-digits": "digits", "vit-fashion": "fashion"}
# What a family's rows look at: examples for activations and search, examples to learn from, test examples.
LIMITS = {
    "vit-digits": {"look": 512, "learn": None, "test": None},
    "vit-fashion": {"look": 512, "learn": 10_000, "test": 2_000},
    "llama": {"look": 64, "learn": 20_000, "test": 256},
    "gpt2": {"look": 64, "learn": 20_000, "test": 256},
}
LEARN: dict[str, dict[str, Any]] = {
    "vit-digits": {"steps": 1000},
    "vit-fashion": {"steps": 1000},
    "llama": {"steps": 1900, "batch_size": 16},
    "gpt2": {"steps": 1900, "batch_size": 16},
}
# Wide models learn in fewer steps, of which each takes longer, and take their products in bfloat16.
WIDE_FROM = 512
WIDE: dict[str, Any] = {"steps": 600, "precision": "bfloat16"}
# The reach: as long as `--learn-effort thorough`.
THOROUGH: dict[str, Any] = {"steps": 3000, "learn_target": "distill"}
ROWS = (
    "stored",
    "paper",
    "default",
    "all",
    "activations",
    "search",
    "learned",
    "learned-quick",
    "distilled-quick",
    "distilled",
    "thorough",
    "generated",
    "generated-distilled",
)
GENERATED = 2048
"""Examples that no data went into: texts that the pair wrote, or noise."""


def options_of(row: str, family: str, width: int | None = None) -> dict[str, Any]:
    """The arguments of `isomerge.align` for a row; those of generated examples lack the file (`generated`)."""
    train, limits = train_data(family), LIMITS[family]
    look = {"data": train, "limit": limits["look"], "spaces": "all"}
    learn = {"learn": train, "limit": limits["learn"], "spaces": "all", **learning(family, width)}
    found: dict[str, dict[str, Any]] = {
        "paper": {"spaces": "paper"},
        "default": {"spaces": "default"},
        "all": {"spaces": "all"},
        "activations": look,
        "search": {**look, "search": 60.0},
        "learned": {**learn, "learn_target": "labels"},
        "learned-quick": {**learn, "learn_target": "labels", "steps": 300},
        "distilled-quick": {**learn, "learn_target": "distill", "steps": 300},
        "distilled": {**learn, "learn_target": "distill"},
        "thorough": {**learn, **THOROUGH},
        "generated": {"limit": GENERATED // 4, "spaces": "all"},
        "generated-distilled": {**learn, "learn_target": "distill", "steps": 300},
    }
    tied = {"untie": True} if family == "gpt2" and row not in ("paper", "default") else {}
    return {**found[row], **tied}


def learning(family: str, width: int | None) -> dict[str, Any]:
    """How the learned rows are learned, where a row does not say otherwise."""
    return LEARN[family] | (WIDE if (width or 0) >= WIDE_FROM else {})


def train_data(family: str) -> str:
    """What the models were trained on."""
    folder = IMAGES.get(family)
    return str(DATA / folder / "train.safetensors" if folder else DATA / "corpus" / "train.txt")


def test_data(family: str) -> str:
    """What no model and no matching has seen."""
    folder = IMAGES.get(family)
    return str(DATA / folder / "test.safetensors" if folder else DATA / "corpus" / "heldout.txt")


def named(family: str, width: int | None, half: bool) -> str:
    """What results of a family are called, of its own width and of all data or not."""
    return family + (f"-width-{width}" if width else "") + ("-halves" if half else "")


def folder_of(family: str, seed: str, width: int | None, half: bool) -> Path:
    """Where `train.py` puts a model; of models of halves, the seed is the half."""
    return (
        DATA / family / ((f"width-{width}-" if width else "") + (f"half-{seed}-" if half else "") + f"seed-{seed}")
    )


def align(row: str, family: str, a: Path, b: Path, width: int | None, seed: int) -> tuple[Path, dict[str, Any]]:
    """The second model aligned onto the first, and what that took."""
    out = DATA / "aligned" / family / f"{a.name}--{b.name}--{row}"
    began = time.perf_counter()
    options = options_of(row, family, width)
    if options.keys() & {"learn", "search"}:
        options["seed"] = seed
    if row.startswith("generated"):
        options["data" if row == "generated" else "learn"] = generated(family, a, b)
    _, report = isomerge.align(b, onto=a, out=out, align=True, overwrite=True, **options)
    seconds = time.perf_counter() - began
    stream = (report.get("streams") or [{}])[0]
    return out, {
        "seconds": round(seconds, 1),
        "distance": report["distance"]["after"],
        "distance_stored": report["distance"]["before"],
        "sweeps": len(stream.get("objective", [])) // 2,
        "learned": {k: v for k, v in stream.get("learned", {}).items() if k != "history"},
        "search": stream.get("search"),
        "in_place": stream.get("in_place"),
    }


def generated(family: str, a: Path, b: Path) -> str:
    """The examples of a pair, made once."""
    file = DATA / "aligned" / family / f"{a.name}--{b.name}.safetensors"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        isomerge.generate([a, b], out=file, limit=GENERATED)
    return str(file)


def untied(family: str, a: Path) -> Path:
    """The anchor with a head of its own: the same function."""
    out = DATA / "aligned" / family / f"{a.name}-untied"
    if not out.exists():
        isomerge.align(a, onto=a, out=out, spaces="none", untie=True)
    return out


def measure(family: str, a: Path, b: Path, points: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The line between two models on test data, and what belongs to the pair."""
    limit = LIMITS[family]["test"]
    found = isomerge.barrier(
        a, b, data=test_data(family), spaces="none", points=points, limit=limit, batch_size=128
    )
    line = found["lines"][0]
    return line, {"ensemble": found["ensemble"], "ends": line["ends"], "examples": found["data"]["examples"]}


def run_pair(
    family: str,
    a: Path,
    b: Path,
    width: int | None,
    rows: list[str],
    points: int,
    entry: dict[str, Any],
    save: Any,
) -> None:
    """All rows of one pair that are missing."""
    # what the models are as they are stored is measured first: other rows are compared with it
    for row in (one for one in ROWS if one in rows or (one == "stored" and "pair" not in entry)):
        if row in entry.setdefault("rows", {}):
            continue
        cost: dict[str, Any] = {}
        moved = b
        if row != "stored":
            try:
                moved, cost = align(row, family, a, b, width, seed=0)
            except IsomergeError as error:
                print(f"{a.name} {b.name} {row}: {error}", flush=True)
                continue
        # a line needs both ends alike: a head of its own for the anchor where the moved model has one
        end = untied(family, a) if row != "stored" and options_of(row, family).get("untie") else a
        line, about = measure(family, end, moved, points)
        if row == "stored":
            entry["pair"] = about
        check_same_models(line["ends"][0]["loss"], entry["pair"]["ends"][0]["loss"], f"{a.name} and {b.name}")
        entry["rows"][row] = {
            **cost,
            **{k: line[k] for k in ("barrier", "midpoint", "highest", "losses", "accuracies")},
        }
        entry["points"] = line["points"]
        if row != "stored":
            shutil.rmtree(moved)
        save()
        middle = line["midpoint"]
        print(
            f"{family} {a.name} {b.name} {row:13s} barrier {line['barrier']['entezari']:.4f}  midpoint "
            f"{middle['loss']:.4f} "
            f"{100 * (middle['accuracy'] or 0):.2f} %  {cost.get('seconds', 0)} s",
            flush=True,
        )


def check_same_models(now: float, then: float, pair: str) -> None:
    """Stop where a pair is not the one that its kept rows are of; the anchor, which nothing moves, tells by its
    loss.

    Models that are trained anew on another processor are others: rounding grows with the steps.
    """
    if not math.isclose(
        now, then, rel_tol=1e-5
    ):  # what another processor's rounding changes in a mean loss is smaller
        raise SystemExit(
            f"{pair}: the anchor has a test loss of {now:.6f} and had {then:.6f} when the kept rows were measured: "
            "these are other models, so remove the file of results and measure all its rows"
        )


def summary(pairs: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over pairs, by row."""
    found: dict[str, Any] = {}
    for row in ROWS:
        here = [entry["rows"][row] for entry in pairs.values() if row in entry.get("rows", {})]
        if here:
            barriers = [r["barrier"]["entezari"] for r in here]
            found[row] = {
                "pairs": len(here),
                "barrier": statistics.fmean(barriers),
                "barrier_spread": statistics.stdev(barriers) if len(here) > 1 else None,
                "midpoint_loss": statistics.fmean(r["midpoint"]["loss"] for r in here),
                "midpoint_accuracy": statistics.fmean(r["midpoint"]["accuracy"] or 0 for r in here),
                "seconds": statistics.fmean(r.get("seconds", 0) for r in here),
            }
    return found


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(LIMITS))
    parser.add_argument("--pairs", nargs="*", default=["0-1", "0-2", "1-2"], help="seeds, such as 0-1")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--width", type=int, help="a width other than the family's own")
    parser.add_argument("--half", action="store_true", help="the models that saw disjoint halves of the data")
    parser.add_argument("--points", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    family = arguments.family
    name = named(family, arguments.width, arguments.half)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"family": name, "pairs": {}}

    def save() -> None:
        found["summary"] = summary(found["pairs"])
        found["settings"] = {
            "limits": LIMITS[family],
            "learn": learning(family, arguments.width),
            "versions": {"torch": torch.__version__},
        }
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")

    for pair in arguments.pairs:
        a, b = (folder_of(family, seed, arguments.width, arguments.half) for seed in pair.split("-"))
        if not (a.is_dir() and b.is_dir()):
            print(f"{a.name}, {b.name}: not trained yet (benchmarks/barrier/train.py)", flush=True)
            continue
        run_pair(
            family,
            a,
            b,
            arguments.width,
            arguments.rows,
            arguments.points,
            found["pairs"].setdefault(pair, {}),
            save,
        )


if __name__ == "__main__":
    main()
