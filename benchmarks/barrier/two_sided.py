"""Moving one model or both: what a learned match ends at, in as many steps of the same kind.

    python benchmarks/barrier/two_sided.py [--steps 300]        # results/barrier/two-sided.json

On groups that act linearly, moving both models reaches nothing that moving one does not: (1 - t) a A + t b B is the same
function as (1 - t) A + t a⁻¹ b B. What may differ is how steps are conditioned. Digits ViTs without labels and
Llama-like models with labels, pair 0-1, from the same start and batches: the excess of the midpoint over
the ends on test examples, in nats. Moving both costs a second action on every weight. What is there is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.barrier.diagnose import UnseenLearner, learned_with
from benchmarks.barrier.run import RESULTS, folder_of, learning
from isomerge.solve.learn.elements import LearnedElements
from isomerge.solve.learn.learner import Learned
from isomerge.solve.learn.model_line import MatchedLine

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.observe.data.examples import Examples
    from isomerge.progress import Observer
    from isomerge.solve.learn.simplex import MatchedSimplex
    from isomerge.symmetry.blocks import Block
    from isomerge.symmetry.stage import Stage

RESULT = RESULTS / "two-sided.json"
TARGETS = {"vit-digits": "distill", "llama": "labels"}
SEEDS = {"vit-digits": (0, 1, 2), "llama": (0,)}


class TwoSidedLine(MatchedLine):
    """A line both ends of which are moved by what is learned."""

    def mixed(self, block: Block, point: Sequence[float], stages: Sequence[Stage] | None) -> Tensor:
        """The weights of one block between both models as they are moved."""
        ends = []
        for m in (0, 1):
            x = self.corners[m][block].float()
            if stages is not None:
                stages[m].act_linearly(block, x := x.clone())
            ends.append(x)
        return torch.lerp(ends[0], ends[1], point[1])


class TwoSidedLearner(UnseenLearner):
    """A learner of both models' elements."""

    def __init__(self, simplex: MatchedSimplex, examples: Examples, state: Path, observer: Observer) -> None:
        super().__init__(simplex, examples, state, observer)
        self.elements = LearnedElements(*simplex.learnable(), 2, self.settings)

    def run(self) -> Learned:
        """Learn; what is written is of no use, and only what was measured is kept."""
        found = super().run()
        return Learned(found.elements[1:], found.report)


def measure(family: str, both: bool, steps: int, seed: int) -> dict[str, Any]:
    """One match; the excess before and after, and its CPU seconds."""
    one, two = (folder_of(family, number, None, False) for number in ("0", "1"))
    line, learner = (TwoSidedLine, TwoSidedLearner) if both else (MatchedLine, UnseenLearner)
    how = {**learning(family, None), "steps": steps, "learn_target": TARGETS[family], "seed": seed}
    began = time.process_time()
    learned = learned_with(line, learner, family, (one, two), "two-sided", **how)
    return {
        "excess": learned["unseen"]["after"],
        "before": learned["unseen"]["before"],
        "held_out": learned["barrier"],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for family in TARGETS:
        for seed in SEEDS[family]:
            for name, both in (("one", False), ("both", True)):
                here = results.setdefault(family, {}).setdefault(name, {})
                if str(seed) not in here:
                    here[str(seed)] = measure(family, both, steps, seed)
                    RESULT.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
                    print(family, name, seed, here[str(seed)], flush=True)


if __name__ == "__main__":
    main()
