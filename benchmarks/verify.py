"""Is `verify` ever wrong? Twins and near-twins of every small model of the tests.

    python -m benchmarks.verify                   # forty pairs of each (19,000 of 475), hours
    python -m benchmarks.verify --each 120        # 57,000

A twin is the model moved by a random element of every space, streams and gains included, stored in float32:
`verify` must say `same`. A near-twin is a twin of which one tensor is changed a little (below); `verify` must say
`different`, unless the change is itself a symmetry, as noise in the bias of the keys is: where it says `same`, both
models are run, and it is wrong when their outputs are further apart than rounding explains. ``cannot tell`` is
never wrong, and counted.
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
from safetensors.torch import save_file
from torch import Tensor

import isomerge
from benchmarks.fingerprints.derive import disguised, read
from benchmarks.harness import Benchmark, Cells, Section, quiet, reach_tests
from benchmarks.verdicts.mutations import one_row_larger
from isomerge.models.recognised import recognise

SAME_OUTPUTS = 1e-4
"""Of the largest output: what rounding to float32 behind gauges of condition 4 leaves; measured at 3e-5 and
less."""


def noise(t: Tensor, rng: torch.Generator, size: float) -> Tensor:
    return t + size * t.std() * torch.randn(t.shape, generator=rng)


def exchanged(t: Tensor, rng: torch.Generator) -> Tensor:
    first, second = torch.randperm(len(t), generator=rng)[:2].tolist()
    moved = t.clone()
    moved[[first, second]] = t[[second, first]]
    return moved


def turned(t: Tensor, rng: torch.Generator) -> Tensor:
    moved = t.clone().flatten()
    moved[moved.abs().argmax()] *= -1
    return moved.reshape(t.shape)


CHANGES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise of a hundredth": lambda t, rng: noise(t, rng, 1e-2),
    "noise of a thousandth": lambda t, rng: noise(t, rng, 1e-3),
    "two rows exchanged": exchanged,
    "a sign turned": turned,
    "a row a hundredth larger": one_row_larger,
}


def near(weights: dict[str, Tensor], change: str, rng: torch.Generator) -> tuple[dict[str, Tensor], str]:
    """The weights with one matrix changed, and which."""
    names = sorted(n for n, t in weights.items() if t.is_floating_point() and t.ndim >= 2 and len(t) > 1)
    name = names[int(torch.randint(len(names), (1,), generator=rng))]
    return {**weights, name: CHANGES[change](weights[name], rng)}, name


def outputs_apart(folder: Path, first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest difference of the two models' outputs, of the largest output."""
    from toys import outputs, relative

    returned = []
    for weights in (first, second):
        save_file(
            {n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"}
        )
        returned.append(outputs(folder))
    return relative(returned[1], returned[0])


def judge(name: str, pairs: int) -> dict[str, Any]:
    """So many pairs of one architecture, every other a twin."""
    from toys import save_toy

    begin, counts, wrong = time.time(), Counter(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_toy(name, Path(temporary) / "toy", dtype=torch.float32)
        model = recognise(folder)
        weights, config = read(model), model.config
        for number in range(pairs):
            rng = torch.Generator().manual_seed(number)
            twin = read(disguised(weights, config, number))
            kind, where = "twin", ""
            if number % 2:
                kind = list(CHANGES)[number // 2 % len(CHANGES)]
                twin, where = near(twin, kind, rng)
            report = isomerge.verify((weights, config), (twin, config))
            answer = {True: "same", False: "different", None: "cannot tell"}[report["same"]]
            if number % 2 and answer == "same":
                apart = outputs_apart(folder, weights, twin)
                answer = "same, rightly" if apart <= SAME_OUTPUTS else "same"
            counts[f"{kind}: {answer}"] += 1
            if answer not in ("different" if number % 2 else "same", "same, rightly", "cannot tell"):
                wrong.append(
                    {"pair": number, "kind": kind, "tensor": where, "residual": report["residual"]["largest"]}
                )
    return {
        "pairs": pairs,
        "counts": dict(sorted(counts.items())),
        "wrong": wrong,
        "seconds": round(time.time() - begin, 1),
    }


def total(cells: dict[str, Any]) -> dict[str, int]:
    return {
        "pairs": sum(cell["pairs"] for cell in cells.values()),
        "wrong": sum(len(cell["wrong"]) for cell in cells.values()),
    }


def sentence(cells: dict[str, Any]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for cell in cells.values():
        for key, count in cell["counts"].items():
            kind, _, answer = key.partition(": ")
            counts["twin" if kind == "twin" else "near-twin", answer] += count
    twins, near = (sum(n for (kind, _), n in counts.items() if kind == k) for k in ("twin", "near-twin"))
    rightly = counts["near-twin", "same, rightly"]
    unsure = sum(n for (_, answer), n in counts.items() if answer == "cannot tell")
    pairs, wrong = total(cells).values()
    words = (
        f"Of [{pairs:,} pairs](../../benchmarks/results/verify.json) over {len(cells)} test models, "
        f"{counts['twin', 'same']} of {twins} twins are called *same* and {counts['near-twin', 'different']} of "
        f"{near} near-twins *different*"
    )
    words += f", {rightly} near-twins rightly *same* (the change is a symmetry)" if rightly else ""
    words += f", {unsure} pairs *cannot tell*" if unsure else ""
    return f"{words}; {wrong or 'none'} {'are' if wrong > 1 else 'is'} wrong."


def toys(asked: argparse.Namespace) -> Cells:
    reach_tests()
    from toys import TOYS

    return {name: {"name": name, "pairs": asked.each} for name in TOYS}


BENCHMARK = Benchmark(
    "verify", toys, judge, inside="models", about=total,
    sections=(Section("guide/same-model.md", "verify", sentence),),
    said=lambda cell: f"{cell['counts']}, {len(cell['wrong'])} wrong",
    complete=lambda cell, settings: cell["pairs"] >= settings["pairs"],
    options=lambda parser: parser.add_argument("--each", type=int, default=40, help="pairs of every model"),
)  # fmt: skip

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()
