"""Transformers with a gauge, without its consequences, and without one: trained alike, compared.

    python -m benchmarks.relational.compare                          # everything missing, then the page
    python -m benchmarks.relational.compare --list                   # what that is
    python -m benchmarks.relational.compare --task text --arms standard quotient --seconds 600

Every arm (`arms.py`) learns Fashion-MNIST and bytes of English in as many steps on the same batches, at several
learning rates with one seed, and at its own best one, by validation, with two more. Results go to
``benchmarks/results/relational/TASK.json`` after every run; a call that was stopped goes on with what is missing,
and middle learning rates come first, so that columns are whole at any time. Then the page,
``docs/lab/measured-relational.md``, is written.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.paper.results import Results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "relational"
RATES = (3e-3, 1e-3, 1e-2, 3e-4, 3e-2)
"""Peak learning rates, in the order in which they are run."""
SEEDS = (0, 1, 2)
"""The first is the one that sees all rates."""
FREQUENCIES = "frequencies"
"""The cell of who knows only how frequent classes are: what a run must beat not to have failed."""


class Cell(NamedTuple):
    """One run."""

    arm: str
    rate: float
    seed: int

    @property
    def key(self) -> str:
        """Its name among the results, such as ``standard/0.003/seed-0``."""
        return f"{self.arm}/{self.rate:g}/seed-{self.seed}"


def open_results(task: str, folder: Path = RESULTS) -> Results:
    """The results of a task; cells that were measured with other settings are refused."""
    from benchmarks.relational.arms import BETAS, REBALANCE_EVERY
    from benchmarks.relational.data import TASKS
    from benchmarks.relational.models import ANCHORS, HEADS, LAYERS, MLP, RANK, WIDTH
    from benchmarks.relational.training import MEASURED_EVERY, STEPS, WARMUP

    settings = {
        "steps": STEPS,
        "warmup": WARMUP,
        "batch": TASKS[task].batch,
        "betas": BETAS,
        "weight_decay": 0.0,
        "rebalance_every": REBALANCE_EVERY,
        "measured_every": MEASURED_EVERY,
        "model": {
            "width": WIDTH, "layers": LAYERS, "heads": HEADS, "mlp": MLP, "anchors": ANCHORS, "rank": RANK
        },
    }  # fmt: skip
    return Results(folder / f"{task}.json", settings)


def best_rate(results: Results, arm: str) -> float | None:
    """The rate with the lowest validation loss of the first seed; None while a rate was not run, or where none was
    finite."""
    cells = {rate: results.get(Cell(arm, rate, SEEDS[0]).key) for rate in RATES}
    if not all(cells.values()):
        return None
    losses = {rate: cell["validation"]["loss"] for rate, cell in cells.items() if cell["validation"]}
    return min(losses, key=losses.__getitem__, default=None)


def missing(results: Results, arms: Sequence[str]) -> Iterator[Cell]:
    """What is to be run, in order; the best rates are looked up when the sweep is through."""
    sweep = [Cell(arm, rate, SEEDS[0]) for rate in RATES for arm in arms]
    yield from (cell for cell in sweep if not results.has(cell.key))
    for seed in SEEDS[1:]:
        for arm in arms:
            rate = best_rate(results, arm)
            if rate is not None and not results.has((cell := Cell(arm, rate, seed)).key):
                yield cell


def measure(task: str, arms: Sequence[str], until: float) -> None:
    """Run what is missing, until a time of `time.monotonic`; a run that has begun is finished."""
    import torch

    from benchmarks.relational.arms import ARMS
    from benchmarks.relational.data import TASKS
    from benchmarks.relational.training import run

    results, data = open_results(task), None
    for cell in missing(results, arms):
        if time.monotonic() > until:
            print(f"{task}: the time is over; the same command goes on", flush=True)
            return
        torch.set_num_threads(1)
        if data is None:
            data = TASKS[task]()
            results.put(FREQUENCIES, {"test": {"loss": data.known()}})
        found = run(ARMS[cell.arm], data, cell.seed, cell.rate)
        results.put(cell.key, {**found, "rate": cell.rate, "seed": cell.seed})
        told = (
            found["test"] and f"loss {found['test']['loss']:.4f}, accuracy {100 * found['test']['accuracy']:.2f} %"
        )
        print(f"{task} {cell.key}: {told or 'not finite'}, {found['processor_seconds']} s", flush=True)


def main() -> None:
    """Read the command line and run."""
    from benchmarks.relational.arms import ARMS
    from benchmarks.relational.data import TASKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--arms", nargs="*", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--list", action="store_true", help="print what is missing, and run nothing")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    for task in options.task:
        if options.list:
            print(*(f"{task} {cell.key}" for cell in missing(open_results(task), options.arms)), sep="\n")
        else:
            measure(task, options.arms, until)
    if not options.list:
        from benchmarks.relational.tables import main as write_page

        write_page()


if __name__ == "__main__":
    main()
