"""Where a learned barrier sits: one part of the model is averaged at a time, and the gauges are learned anew for it.

    python benchmarks/barrier/diagnose.py FAMILY [--pair 0-1] [--steps 150] [--parts attention mlp ...]

At the midpoint only the part's tensors are averaged, all others are the anchor's; the symmetries are learned for just that
hybrid, from text or, for images, from the models' own predictions. (Swapping parts at gauges that were learned for the whole
tells nothing: the learned midpoint is a co-adapted point; see docs/experiments.md.) Judged on training text or images that
are held out from learning. Writes ``benchmarks/results/barrier/diagnosis.json``; what is there already is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from run import DATA, LEARN, LIMITS, RESULTS, train_data

import isomerge
from isomerge.engine.learn import line as matched_line
from isomerge.engine.learn.line import MatchedLine
from isomerge.symmetry.units import elements_of

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from isomerge.symmetry.blocks import Block
    from isomerge.symmetry.stage import Stage

RESULT = RESULTS / "diagnosis.json"
ATTENTION, MLP = {"h", "kv", "g", "c", "qk", "ov"}, {"ff", "u"}
KINDS = ("all", "embeddings and head", "attention", "mlp")


class PartLine(MatchedLine):
    """A line on which only a part of the model is averaged, looked at in the middle; its ends are the whole models."""

    part = "all"

    def points(self) -> list[list[float]]:
        """The midpoint: towards the source, a hybrid is the part swapped, which no merge writes."""
        return [[0.5, 0.5]]

    def drawn(self, rng: Generator) -> list[float]:
        """The midpoint."""
        return [0.5, 0.5]

    def mixed(self, block: Block, point: Sequence[float], stages: Sequence[Stage] | None) -> Tensor:
        """The anchor's tensor where the block is not of the part."""
        if 0 < point[1] < 1 and not within(self.part, block, self.plan.selection.spec):
            return self.corner(0, block)
        return super().mixed(block, point, stages)


def kind_of(block: Block, spec: Any) -> str:
    """Which kind of part a block belongs to, by the spaces that act on it."""
    spaces = {key.partition("[")[0].removeprefix("shift.") for key in elements_of(spec, block)}
    if spaces & ATTENTION:
        return "attention"
    return "mlp" if spaces & MLP else "embeddings and head" if block.at("l") is None else "norms"


def within(part: str, block: Block, spec: Any) -> bool:
    """Whether a block is averaged: ``all``, a kind, or a kind of one layer such as ``mlp 0``."""
    kind, _, layer = part.rpartition(" ")
    if layer.isdigit():
        return kind_of(block, spec) == kind and block.at("l") == int(layer)
    return part in ("all", kind_of(block, spec))


def diagnose(family: str, pair: str, part: str, steps: int) -> dict[str, Any]:
    """Learn for one part; the held-out excess over the mean of the ends, in nats."""
    one, two = (DATA / family / f"seed-{seed}" for seed in pair.split("-"))
    out = DATA / "aligned" / family / f"diagnosis-{pair}-{part.replace(' ', '-')}"
    PartLine.part = part
    matched_line.MatchedLine = PartLine
    began = time.perf_counter()
    how = {k: v for k, v in LEARN[family].items() if k != "steps"}
    data = train_data(family)
    untie = {"untie": True} if family == "gpt2" else {}
    _, report = isomerge.align(
        two, onto=one, out=out, force=True, spaces="all", learn=data, limit=LIMITS[family]["learn"],
        learn_target="auto", steps=steps, seed=0, **how, **untie,
    )  # fmt: skip
    shutil.rmtree(out)
    learned = report["streams"][0]["learned"]
    return {
        "midpoint": learned["barrier"],
        "before_learning": learned["history"][0]["midpoint"],
        "steps": steps,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(LIMITS))
    parser.add_argument("--pair", default="0-1", help="seeds, such as 0-1")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--parts", nargs="*", default=list(KINDS), help=f"{', '.join(KINDS)}, or such as `mlp 0`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    here = found.setdefault(f"{arguments.family} {arguments.pair}", {})
    for part in arguments.parts:
        if part not in here:
            here[part] = diagnose(arguments.family, arguments.pair, part, arguments.steps)
            RESULT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(f"{arguments.family} {arguments.pair} {part}: {here[part]}", flush=True)


if __name__ == "__main__":
    main()
