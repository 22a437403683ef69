"""Where a learned barrier sits: one part of the model is averaged at a time, and the gauges are learned anew for
it.

    python benchmarks/barrier/diagnose.py FAMILY [--pair 0-1] [--steps 150] [--parts attention mlp "mlp 0" ...]
    [--layers]

At the midpoint only the part's tensors are averaged, all others are the anchor's; the symmetries are learned for
just that hybrid, from text or, for images, from the models' own predictions. (Swapping parts at gauges that were
learned for the whole tells nothing: the learned midpoint is a co-adapted point; see docs/lab/experiments.md.) Which
step is kept is decided by examples held out from learning, which the models were trained on. What it leaves is
measured by labels on test data that neither the models nor learning have seen: where the tables count a part of the
test data, on as many examples from its second half; of the digits, whose test images they count all, on every
second one. Nothing is chosen by these. Writes ``benchmarks/results/barrier/diagnosis.json``; what is there already
is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import isomerge
from benchmarks.barrier.run import DATA, LIMITS, RESULTS, folder_of, learning, named, test_data, train_data
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.losses import targets_of
from isomerge.solve.learn.learner import Learned, Learner
from isomerge.solve.learn.model_line import MatchedLine
from isomerge.solve.pairs import solutions
from isomerge.symmetry.units import elements_of

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from isomerge.observe.data.examples import Examples
    from isomerge.symmetry.blocks import Block
    from isomerge.symmetry.stage import Stage

RESULT = RESULTS / "diagnosis.json"
ATTENTION, MLP = {"h", "kv", "g", "c", "qk", "ov"}, {"ff", "u"}
KINDS = ("all", "embeddings and head", "attention", "mlp")
IN_LAYERS = ("attention", "mlp")
BATCH = 64


class PartLine(MatchedLine):
    """A line on which only a part of the model is averaged, looked at in the middle; its ends are the whole
    models."""

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


class UnseenLearner(Learner):
    """A learner that measures what it starts from and what it keeps on examples that it does not look at."""

    unseen: Examples

    def run(self) -> Learned:
        """Learn; the report has the excess of the midpoint, ``before`` and ``after``."""
        before = self.excess()
        found = super().run()
        found.report["unseen"] = {"before": before, "after": self.excess(), "examples": len(self.unseen)}
        return found

    def excess(self) -> float:
        """The loss of the midpoint by labels less the mean of the ends' losses, as the elements are now."""
        middle, *ends = (self.measured(point) for point in ([0.5, 0.5], [1.0, 0.0], [0.0, 1.0]))
        return middle - sum(ends) / 2

    def measured(self, point: list[float]) -> float:
        """The mean loss by labels at a point."""
        total, count = 0.0, 0
        with torch.no_grad(), self.simplex.standing_at(point, self.elements.stages()):
            for batch in self.unseen.batches(BATCH):
                logits = self.simplex.logits(batch)
                loss, n, _ = self.kind.loss(logits, targets_of(batch, logits, self.kind))
                total, count = total + float(loss), count + n
        return total / count


def unseen_half(examples: Examples, counted: int | None) -> Examples:
    """Test examples that judge a diagnosis.

    Args:
        examples: all test examples.
        counted: how many of them, the first ones, the tables count; None for all.

    Returns:
        As many from the second half, none of which the tables count; where they count all, every second one.
    """
    start = len(examples) // 2
    if counted is not None and start < counted:
        raise SystemExit(f"{len(examples)} test examples are too few: the first {counted} are the tables'")
    rows = slice(1, None, 2) if counted is None else slice(start, start + counted)
    return replace(examples, tensors={name: x[rows] for name, x in examples.tensors.items()})


def layers_of(folder: Path) -> int:
    """How many layers a model has, by its config."""
    config = json.loads((folder / "config.json").read_text())
    return int(next(config[key] for key in ("num_hidden_layers", "n_layer") if key in config))


def check_part(part: str, layers: int) -> None:
    """Refuse a part that no block belongs to."""
    kind, _, layer = part.rpartition(" ")
    if part not in KINDS and not (kind in IN_LAYERS and layer.isdigit() and int(layer) < layers):
        told = " or ".join(f"`{kind} 0` to `{kind} {layers - 1}`" for kind in IN_LAYERS)
        raise SystemExit(f"--parts {part!r}: choose {', '.join(KINDS)}, or {told}")


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


def learned_with(
    line: type[MatchedLine],
    learner: type[UnseenLearner],
    family: str,
    models: tuple[Path, Path],
    name: str,
    **how: Any,
) -> dict[str, Any]:
    """What is reported of a match that is learned along a line of one's own, with the excess on unseen examples.

    Args:
        line, learner: stand in for those of `isomerge.solve.pairs.solutions` while it lasts.
        family: of the models.
        models: the anchor and the other one.
        name: of the output, which is thrown away.
        how: arguments of `isomerge.align` beside what is learned from.
    """
    one, two = models
    config = json.loads((one / "config.json").read_text())
    learner.unseen = unseen_half(open_data(test_data(family), one, config=config), LIMITS[family]["test"])
    kept = solutions.MatchedLine, solutions.Learner
    solutions.MatchedLine, solutions.Learner = line, learner
    out = DATA / "aligned" / family / name
    try:
        _, report = isomerge.align(
            two, onto=one, out=out, align=True, overwrite=True, spaces="all", learn=train_data(family),
            limit=LIMITS[family]["learn"], **how,
        )  # fmt: skip
    finally:
        solutions.MatchedLine, solutions.Learner = kept
    shutil.rmtree(out)
    return report["streams"][0]["learned"]


def diagnose(
    family: str, models: tuple[Path, Path], part: str, steps: int, width: int | None = None
) -> dict[str, Any]:
    """Learn for one part; the excess over the mean of the ends on unseen examples, in nats."""
    one, two = models
    PartLine.part = part
    began = time.perf_counter()
    how = {**learning(family, width), "steps": steps, "learn_target": "auto", "seed": 0}
    untie = {"untie": True} if family == "gpt2" else {}
    name = f"diagnosis-{one.name}--{two.name}-{part.replace(' ', '-')}"
    unseen = learned_with(PartLine, UnseenLearner, family, models, name, **how, **untie)["unseen"]
    return {
        "midpoint": unseen["after"],
        "before_learning": unseen["before"],
        "unseen": unseen["examples"],
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
    parser.add_argument("--layers", action="store_true", help="attention and mlp of every layer as well")
    parser.add_argument("--width", type=int, help="a width other than the family's own")
    parser.add_argument("--half", action="store_true", help="the models that saw disjoint halves of the data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    family, name = arguments.family, named(arguments.family, arguments.width, arguments.half)
    one, two = (folder_of(family, seed, arguments.width, arguments.half) for seed in arguments.pair.split("-"))
    if not (one.is_dir() and two.is_dir()):
        raise SystemExit(f"{one.name}, {two.name}: not trained yet (benchmarks/barrier/train.py)")
    layers = layers_of(one)
    parts = [*arguments.parts, *(f"{kind} {n}" for kind in IN_LAYERS for n in range(layers) if arguments.layers)]
    for part in parts:
        check_part(part, layers)
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    here = found.setdefault(f"{name} {arguments.pair}", {})
    for part in dict.fromkeys(parts):
        if part not in here:
            here[part] = diagnose(family, (one, two), part, arguments.steps, arguments.width)
            RESULT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(f"{name} {arguments.pair} {part}: {here[part]}", flush=True)


if __name__ == "__main__":
    main()
