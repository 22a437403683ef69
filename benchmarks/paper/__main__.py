"""The paper's tables and figures from nothing: fetch, train, measure, write the page; says first how long each step
takes.

    python -m benchmarks.paper                    # everything anew; goes on where it was stopped
    python -m benchmarks.paper --list             # the steps and how long they took
    python -m benchmarks.paper --keep             # keep committed results, and measure what they lack
    python -m benchmarks.paper --page             # draw the figures and write the page from what is measured
    python -m benchmarks.paper "table 2" --list   # one step: its cells; --help says what else a step takes

A run that starts sets the committed results aside, into `benchmarks/data/paper/before`, so that everything is
measured again. What steps took is kept in `benchmarks/results/paper/steps.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks import harness
from benchmarks.harness import DATA, RESULTS, ROOT, Benchmark, write_whole
from benchmarks.paper import others, page, runtimes, table1, vits
from benchmarks.paper.sentences import duration

MADE = DATA / "paper"
TIMES = RESULTS / "paper" / "steps.json"
BENCHMARKS: dict[str, Benchmark] = {
    "table 1": table1.BENCHMARKS["table1"],
    "matching": vits.MATCHING,
    "table 2": vits.TABLE2,
    "figure 3": vits.FIGURE3,
    "figure 4": vits.FIGURE4,
    "figure 5": vits.FIGURE5,
    "figure 6": vits.FIGURE6,
    "figure 6 at 24 layers": others.DEEP,
    "table 3": runtimes.TABLE3,
    "classifier and optima": vits.QUESTIONS,
    "T5": others.T5,
    "real checkpoints": others.REAL,
}
AT_FULL_SIZE = "table 1 at full size"
"""On a GPU, and no step of a whole run."""


def script(name: str, *words: str) -> tuple[str, ...]:
    return (f"benchmarks/barrier/{name}.py", *words)


STEPS: dict[str, tuple[str, ...]] = {
    "fetch images and text": script("data"),
    "fetch packages": ("-m", "benchmarks.fetch"),
    **{
        f"train {family}, seed {seed}": script("train", family, "--seed", str(seed))
        for family in runtimes.LOOKS
        for seed in (0, 1, 2)
    },
    **{name: ("-m", "benchmarks.paper", name) for name in ("fine-tune MiniLM", *BENCHMARKS)},
    "page": ("-m", "benchmarks.paper", "--page"),
}
COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "fine-tune MiniLM": lambda words: table1.tune_all(table1.PRESETS["table1"]),
    **{name: partial(Benchmark.main, benchmark) for name, benchmark in BENCHMARKS.items()},
    AT_FULL_SIZE: table1.BENCHMARKS["table1-gpu"].main,
}


def times() -> dict[str, float]:
    """The seconds that steps took, as far as they are known."""
    return json.loads(TIMES.read_text()) if TIMES.is_file() else {}


def took(name: str) -> str:
    """What is known of a step, in words."""
    return duration(times()[name]) if name in times() else "not recorded"


def listing() -> list[str]:
    """A line per step and the total of those that are known."""
    known = sum(seconds for name, seconds in times().items() if name in STEPS)
    return [*(f"{name:28} {took(name)}" for name in STEPS), f"{'all that is recorded':28} {duration(known)}"]


def set_aside() -> None:
    """Move the committed cells away, once per run; steps' times stay, so that the list can be printed."""
    if (started := MADE / "started").exists():
        return
    (MADE / "before").mkdir(parents=True, exist_ok=True)
    for benchmark in BENCHMARKS.values():
        if (path := harness.RESULTS / f"{benchmark.name}.json").is_file():
            path.replace(MADE / "before" / path.name)
    started.touch()


def run(name: str, number: int) -> None:
    """One step; stops with its name where it fails, and remembers what it took."""
    print(f"[{number}/{len(STEPS)}] {name}: {took(name)}", flush=True)
    began, before = time.perf_counter(), times().get(name)
    if subprocess.run([sys.executable, *STEPS[name]], cwd=ROOT, check=False).returncode:
        sys.exit(f"{name} failed; what was measured is kept, and the same command goes on from there")
    seconds = time.perf_counter() - began
    if before is None or seconds > before / 2:  # a step whose cells were there says nothing of what it takes
        write_whole(TIMES, json.dumps(times() | {name: round(seconds, 1)}, indent=1) + "\n")


def main(words: list[str]) -> None:
    """One step, or everything in order."""
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]](words[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the steps and how long they took")
    parser.add_argument("--keep", action="store_true", help="keep committed results, and measure what they lack")
    parser.add_argument("--page", action="store_true", help="draw and write what is measured, and measure nothing")
    asked = parser.parse_args(words)
    if asked.page:
        return page.write()
    print("\n".join(listing()), flush=True)
    if asked.list:
        return None
    if not asked.keep:
        set_aside()
    for number, name in enumerate(STEPS, 1):
        run(name, number)
    (MADE / "started").unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
