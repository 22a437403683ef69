"""The paper's tables and figures from nothing: fetch, train, measure, write the page; says first how long each step
takes.

    python -m benchmarks.paper             # everything anew; goes on where it was stopped
    python -m benchmarks.paper --list      # the steps and how long they took when the committed results were measured
    python -m benchmarks.paper --keep      # keep committed results, and measure what they lack
    python -m benchmarks.paper --record    # write down what is known of times, for whoever starts from a clean clone

A run that starts sets the committed results aside, into `benchmarks/data/paper/before`, so that everything is
measured again. What steps took is kept in `benchmarks/results/paper/steps.json`; before a first whole run, the
seconds that the cells of a step's results tell.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper.sentences import duration, spent

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "paper"
DATA = ROOT / "benchmarks" / "data"
STARTED = DATA / "paper" / "started"
STEPS_FILE = "steps.json"
SEEDS = ("0", "1", "2")


@dataclass(frozen=True)
class Step:
    """A command, and the results whose cells tell how long it took."""

    name: str
    command: tuple[str, ...]
    results: str = ""
    trained: str = ""
    """Folders below `benchmarks/data` whose training.json tells it."""

    def recorded(self) -> float | None:
        """Seconds when it was measured last; None where nobody knows."""
        told = stored(RESULTS / STEPS_FILE).get(self.name)
        if told is None and self.results:
            told = spent(stored(RESULTS / self.results).get("cells", {})) or None
        if told is None and self.trained:
            files = sorted(DATA.glob(f"{self.trained}/training.json"))
            told = sum(json.loads(file.read_text())["seconds"] for file in files) or None
        return told


def module(name: str, *more: str) -> tuple[str, ...]:
    """A command of this benchmark."""
    return ("-m", f"benchmarks.{name}", *more)


def train(family: str, seed: str) -> Step:
    """Training one model of the barrier benchmark."""
    command = ("benchmarks/barrier/train.py", family, "--seed", seed)
    return Step(f"train {family}, seed {seed}", command, trained=f"barrier/{family}/seed-{seed}")


STEPS = (
    Step("fetch images and text", ("benchmarks/barrier/data.py",)),
    Step("fetch packages", module("fetch")),
    *(train("vit-fashion", seed) for seed in SEEDS),
    *(train(family, seed) for family in ("gpt2", "llama") for seed in SEEDS),
    Step("fine-tune MiniLM", module("paper.text.finetune"), trained="paper/text/cpu/*/*"),
    Step("table 1", module("paper.text.table1"), "table1.json"),
    Step("matching", module("paper.vision.matching"), "matching.json"),
    Step("table 2", module("paper.vision.table2"), "table2.json"),
    Step("figure 3", module("paper.vision.ablation"), "ablation.json"),
    Step("figure 4", module("paper.vision.distances"), "distances.json"),
    Step("figure 5", module("paper.vision.lines"), "lines.json"),
    Step("figure 6", module("paper.vision.layers"), "layers.json"),
    Step("table 3", module("paper.vision.runtimes"), "runtimes.json"),
    Step("classifier and optima", module("paper.vision.reviewers"), "reviewers.json"),
    Step("T5", module("paper.architectures.t5"), "t5.json"),
    Step("real checkpoints", module("paper.architectures.families"), "families.json"),
    Step("page", module("paper.page")),
)


def stored(path: Path) -> dict:
    """A JSON file; empty where there is none."""
    return json.loads(path.read_text()) if path.is_file() else {}


def listing() -> list[str]:
    """A line per step and the total of those that are known."""
    times = [step.recorded() for step in STEPS]
    lines = [
        f"{step.name:28} {'not recorded' if t is None else duration(t)}"
        for step, t in zip(STEPS, times, strict=True)
    ]
    known = sum(t for t in times if t is not None)
    return [*lines, f"{'all that is recorded':28} {duration(known)}"]


def set_aside() -> None:
    """Move the committed cells away, once per run; steps' times stay, so that the list can be printed."""
    if STARTED.exists():
        return
    before = DATA / "paper" / "before"
    before.mkdir(parents=True, exist_ok=True)
    for step in STEPS:
        if step.results and (path := RESULTS / step.results).is_file():
            path.replace(before / path.name)
    STARTED.touch()


def note(name: str, seconds: float) -> None:
    """Remember what a step took. Parts of a step that was stopped are added up."""
    path = RESULTS / STEPS_FILE
    RESULTS.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(stored(path) | {name: round(seconds, 1)}, indent=1) + "\n")
    beside.replace(path)


def run(step: Step, number: int) -> None:
    """One step; stops with its name where it fails."""
    told = step.recorded()
    print(
        f"[{number}/{len(STEPS)}] {step.name}: {'not recorded' if told is None else f'took {duration(told)}'}",
        flush=True,
    )
    began = time.perf_counter()
    if subprocess.run([sys.executable, *step.command], cwd=ROOT, check=False).returncode:
        sys.exit(f"{step.name} failed; what was measured is kept, and the same command goes on from there")
    took = time.perf_counter() - began
    if told is None or took > told / 2:  # a step that found its cells measured says nothing of what it takes
        note(step.name, took)


def main() -> None:
    """Everything, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the steps and how long they took")
    parser.add_argument("--keep", action="store_true", help="keep committed results, and measure what they lack")
    parser.add_argument("--record", action="store_true", help="write down the times that are known")
    options = parser.parse_args()
    print("\n".join(listing()), flush=True)
    for step in STEPS if options.record else ():
        if (told := step.recorded()) is not None:
            note(step.name, told)
    if options.list or options.record:
        return
    if not options.keep:
        set_aside()
    for number, step in enumerate(STEPS, 1):
        run(step, number)
    STARTED.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
