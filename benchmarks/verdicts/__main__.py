"""Is `verify` ever wrong? Mutations of configs and tensors over small models of many architectures, each judged by
running both.

    python -m benchmarks.verdicts                   # two hundred of each (11,000 of 55), an hour on one core; resumable
    python -m benchmarks.verdicts --each 1000
    python -m benchmarks.verdicts --models llama bert --results a.json    # one of several processes
    python -m benchmarks.verdicts --each 0 --join a.json b.json           # their results in one file

Writes results/verdicts.json and the sentence about it in docs/guide/same-model.md. Both models are run in float64
(norms, softmax and routers as well) on inputs that hold every token and position. A verdict is wrong

* when it is *same* and outputs are further apart than ten times what it allows to weights, or one model does not
  run;
* when it is *not the same*, or a refusal, and nothing but declared symmetries was used.

*Not the same* of models whose outputs agree is right (by the symmetries declared), and counted apart: an undeclared
symmetry, or a part that no output depends on. So are *cannot tell* and refusals (exit code 2).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

import isomerge
from benchmarks.verdicts.models import MODELS, Config, Weights, apart, said, stored
from benchmarks.verdicts.mutations import Mutant, mutant
from isomerge.errors import IsomergeError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "verdicts.json"
PAGE = ROOT / "docs" / "guide" / "same-model.md"
MARKS = "<!-- verdicts: begin -->\n", "<!-- verdicts: end -->"
EQUAL = 1e-9
"""Of the largest output: what is left of float64 behind gauges of condition 4."""


def outputs_apart(weights: Weights, config: Config, changed: Mutant, base: dict[str, torch.Tensor]) -> float:
    """How far the outputs of a pair are apart; infinite where a model does not run."""
    try:
        first = said(weights, changed.config) if changed.both else base
        return apart(first, said(changed.weights, changed.config))
    except Exception:  # whatever transformers says of tensors and configs that do not fit
        return float("inf")


def judged(
    weights: Weights, config: Config, changed: Mutant, base: dict[str, torch.Tensor]
) -> tuple[str, dict[str, Any] | None]:
    """What `verify` says of a pair, and what is wrong with it (None: nothing)."""
    first = (weights, changed.config if changed.both else config)
    about: dict[str, Any] = {"kind": changed.kind, "what": changed.what}
    try:
        report = isomerge.verify(first, (changed.weights, changed.config))
    except IsomergeError as error:
        return "refused", {**about, "said": str(error)} if changed.symmetric else None
    told = {True: "same", False: "not the same", None: "cannot tell"}[report["same"]]
    residual = report["residual"]
    about |= {"said": told, "residual": residual["largest"], "tensor": residual["tensor"]}
    distance = outputs_apart(weights, config, changed, base)
    about["outputs"] = distance
    if report["same"]:
        return told, None if distance <= max(EQUAL, 10 * residual["tolerance"]) else about
    if report["same"] is False and distance <= EQUAL:
        return f"{told}, outputs equal", about if changed.symmetric else None
    return told, about if report["same"] is False and changed.symmetric else None


def judge(name: str, start: int, stop: int) -> dict[str, Any]:
    """The mutations of one model by their numbers."""
    begin, counts, wrong = time.process_time(), Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        weights, config = stored(name, Path(folder))
    base = said(weights, config)
    for number in range(start, stop):
        changed = mutant(name, weights, config, number)
        told, mistake = judged(weights, config, changed, base)
        counts[f"{changed.kind}: {told}"] += 1
        if mistake is not None:
            wrong.append({"number": number, **mistake})
    return {
        "mutations": stop - start,
        "counts": dict(counts),
        "wrong": wrong,
        "seconds": round(time.process_time() - begin, 1),
    }


def joined(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """The results of more mutations of the same model."""
    return {
        "mutations": one["mutations"] + two["mutations"],
        "counts": dict(sorted((Counter(one["counts"]) + Counter(two["counts"])).items())),
        "wrong": [*one["wrong"], *two["wrong"]],
        "seconds": round(one["seconds"] + two["seconds"], 1),
    }


def sentence(found: dict[str, Any]) -> str:
    """What the page says of the results."""
    said_of: Counter[str] = Counter()
    twins: Counter[str] = Counter()
    for model in found["models"].values():
        for key, count in model["counts"].items():
            kind, _, told = key.rpartition(": ")
            said_of[told] += count
            if kind == "twin" or kind.startswith("twin in"):
                twins[told] += count
    wrong = found["wrong"]
    return (
        f"Of [{found['mutations']:,} mutations](../../benchmarks/results/verdicts.json) of configs and tensors "
        f"over {len(found['models'])} small "
        f"models, each judged by running both in float64, {said_of['same']:,} are called *same*, "
        f"{said_of['not the same']:,} *not the same*, "
        f"{said_of['not the same, outputs equal']:,} *not the same by the symmetries declared* although outputs "
        f"agree (symmetries that are not "
        f"declared, or weights that no output depends on), {said_of['cannot tell']:,} *cannot tell*, and "
        f"{said_of['refused']:,} are refused; "
        f"{twins['same']:,} of {twins.total():,} twins are called *same*. {wrong or 'None'} "
        f"{'are' if wrong > 1 else 'is'} wrong."
    )


def page_with(page: str, found: dict[str, Any]) -> str:
    """The page with the sentence of these results between its marks."""
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}{sentence(found)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def main() -> None:
    """Judge what is not judged yet, a slice of every model at a time, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=200, help="of every model")
    parser.add_argument("--slice", type=int, default=40, help="of a model before the next one's turn")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--join", nargs="*", type=Path, default=[], help="results of other models to take in")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    done: dict[str, Any] = {}
    for file in filter(Path.exists, [chosen.results, *chosen.join]):
        done |= json.loads(file.read_text())["models"]
    write(chosen.results, done)
    for stop in range(chosen.slice, chosen.each + chosen.slice, chosen.slice):
        for name in chosen.models:
            old = done.get(name, {"mutations": 0, "counts": {}, "wrong": [], "seconds": 0.0})
            if old["mutations"] >= min(stop, chosen.each):
                continue
            done[name] = joined(old, judge(name, old["mutations"], min(stop, chosen.each)))
            print(name, done[name]["mutations"], len(done[name]["wrong"]), done[name]["seconds"], flush=True)
            write(chosen.results, done)


def write(path: Path, done: dict[str, Any]) -> None:
    """The results, and the sentence about them, where they are those of the repository."""
    found = {
        "mutations": sum(d["mutations"] for d in done.values()),
        "wrong": sum(len(d["wrong"]) for d in done.values()),
        "models": {name: done[name] for name in MODELS if name in done},
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    if path == RESULTS:
        PAGE.write_text(page_with(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
