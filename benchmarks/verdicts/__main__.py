"""Is `verify` ever wrong? Mutations of configs and tensors over small models of many architectures, each judged by
running both.

    python -m benchmarks.verdicts                   # two hundred of each (11,000 of 55), an hour on one core
    python -m benchmarks.verdicts --each 1000

Both models are run in float64 (norms, softmax and routers as well) on inputs that hold every token and position. A
verdict is wrong

* when it is *same* and outputs are further apart than ten times what it allows to weights, or one model does not
  run;
* when it is *not the same*, or a refusal, and nothing but declared symmetries was used.

*Not the same* of models whose outputs agree is right (by the symmetries declared), and counted apart: an undeclared
symmetry, or a part that no output depends on. So are *cannot tell* and refusals (exit code 2).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.harness import Benchmark, Cells, Section, quiet
from benchmarks.verdicts.models import MODELS, Config, Weights, apart, said, stored
from benchmarks.verdicts.mutations import Mutant, mutant
from isomerge.errors import IsomergeError

SLICE = 40
"""Mutations between two that are kept."""
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
    answer = {True: "same", False: "not the same", None: "cannot tell"}[report["same"]]
    residual = report["residual"]
    about |= {"said": answer, "residual": residual["largest"], "tensor": residual["tensor"]}
    distance = outputs_apart(weights, config, changed, base)
    about["outputs"] = distance
    if report["same"]:
        return answer, None if distance <= max(EQUAL, 10 * residual["tolerance"]) else about
    if report["same"] is False and distance <= EQUAL:
        return f"{answer}, outputs equal", about if changed.symmetric else None
    return answer, about if report["same"] is False and changed.symmetric else None


def judge(
    name: str, each: int, kept: dict[str, Any] | None, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """So many mutations of one model, by their numbers; a slice at a time is kept."""
    cell = kept or {"mutations": 0, "counts": {}, "wrong": [], "seconds": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        weights, config = stored(name, Path(folder))
    base = said(weights, config)
    while cell["mutations"] < each:
        begin, counts, wrong = time.process_time(), Counter[str](cell["counts"]), list(cell["wrong"])
        stop = min(each, cell["mutations"] + SLICE)
        for number in range(cell["mutations"], stop):
            changed = mutant(name, weights, config, number)
            answer, mistake = judged(weights, config, changed, base)
            counts[f"{changed.kind}: {answer}"] += 1
            if mistake is not None:
                wrong.append({"number": number, **mistake})
        seconds = round(cell["seconds"] + time.process_time() - begin, 1)
        cell = {"mutations": stop, "counts": dict(sorted(counts.items())), "wrong": wrong, "seconds": seconds}
        keep(cell)
    return cell


def total(cells: dict[str, Any]) -> dict[str, int]:
    return {
        "mutations": sum(cell["mutations"] for cell in cells.values()),
        "wrong": sum(len(cell["wrong"]) for cell in cells.values()),
    }


def sentence(cells: dict[str, Any]) -> str:
    said_of: Counter[str] = Counter()
    twins: Counter[str] = Counter()
    for cell in cells.values():
        for key, count in cell["counts"].items():
            kind, _, answer = key.rpartition(": ")
            said_of[answer] += count
            if kind == "twin" or kind.startswith("twin in"):
                twins[answer] += count
    mutations, wrong = total(cells).values()
    return (
        f"Of [{mutations:,} mutations](../../benchmarks/results/verdicts.json) of configs and tensors "
        f"over {len(cells)} small "
        f"models, each judged by running both in float64, {said_of['same']:,} are called *same*, "
        f"{said_of['not the same']:,} *not the same*, "
        f"{said_of['not the same, outputs equal']:,} *not the same by the symmetries declared* although outputs "
        f"agree (symmetries that are not "
        f"declared, or weights that no output depends on), {said_of['cannot tell']:,} *cannot tell*, and "
        f"{said_of['refused']:,} are refused; "
        f"{twins['same']:,} of {twins.total():,} twins are called *same*. {wrong or 'None'} "
        f"{'are' if wrong > 1 else 'is'} wrong."
    )


def models(asked: argparse.Namespace) -> Cells:
    return {name: {"name": name, "each": asked.each} for name in MODELS}


BENCHMARK = Benchmark(
    "verdicts", models, judge, resumes=True, inside="models", about=total,
    sections=(Section("guide/same-model.md", "verdicts", sentence),),
    said=lambda cell: f"{cell['mutations']} mutations, {len(cell['wrong'])} wrong",
    complete=lambda cell, how: cell["mutations"] >= how["each"],
    options=lambda parser: parser.add_argument("--each", type=int, default=200, help="mutations of every model"),
)  # fmt: skip

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()
