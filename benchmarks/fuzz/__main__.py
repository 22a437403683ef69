"""Many mutated inputs through the command line, in forked processes; resumable, and every input can be repeated.

    python -m benchmarks.fuzz --inputs 100000 --seed 0      # resumable; faults of an earlier run are tried again first
    python -m benchmarks.fuzz --repeat 4711 --seed 0        # one input again, in this process; its folder stays until Enter

A process is forked for every batch, so that what one input breaks, no later one sees; a child that says nothing for
ten seconds of the processor's time (or five minutes) is killed, and that is a hang. A fault is also: an exception
that is no sentence, a dead child, more or less than one sentence on stderr, a file left by a refused command, any
path outside the folder that was opened for writing or removed, and an input that changed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.fuzz.sandbox import FAULTS, Verdict, run_one, watch
from benchmarks.fuzz.subjects import SUBJECTS, make_inputs
from benchmarks.harness import Benchmark, Cells
from benchmarks.performance.processes import processor_seconds

SECONDS = 10
"""Of the processor, for one input."""
PATIENCE = 300
"""Seconds by the clock after which a silent child is stuck, whatever it has had of the processor."""
BATCH = 100
MEMORY = 6 << 30
"""Address space that a child may take: what asks for more is refused memory, and must say so."""


def child(pipe: Connection, inputs: Path, box: Path, numbers: range, seed: int, kinds: list[str]) -> None:
    """Runs the numbers one after the other and sends every verdict."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        for number in numbers:
            pipe.send(run_one(inputs, box, number, seed, kinds))
    except BaseException as error:  # a fault of this benchmark: it must not pass for one of the program
        print(f"the benchmark itself failed: {error!r}", flush=True)
        os._exit(99)


def batch(inputs: Path, box: Path, numbers: range, seed: int, kinds: list[str]) -> list[Verdict]:
    """The verdicts of a batch; a hang or a dead child costs one number, and the rest goes to a new child."""
    verdicts: list[Verdict] = []
    context = multiprocessing.get_context("fork")
    while len(verdicts) < len(numbers):
        left = numbers[len(verdicts) :]
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(sender, inputs, box, left, seed, kinds))
        process.start()
        sender.close()
        got, why = _verdicts(process, receiver, len(left))
        process.kill()
        process.join()
        receiver.close()
        verdicts += got
        if len(got) < len(left):
            number = left[len(got)]
            verdicts.append(Verdict(number, kinds[number % len(kinds)], why, f"status {process.exitcode}"))
    return verdicts


def _is_stuck(pid: int, spent: float, began: float) -> bool:
    """Whether a silent child has had its seconds of the processor, or sleeps: on a busy machine neither says
    anything of the other."""
    return processor_seconds(pid) - spent >= SECONDS or time.monotonic() - began >= PATIENCE


def _verdicts(process: BaseProcess, pipe: Connection, count: int) -> tuple[list[Verdict], str]:
    """What a child sends, until it is done, dies or falls silent."""
    verdicts, pid = list[Verdict](), process.pid or 0
    while len(verdicts) < count:
        spent, began = processor_seconds(pid), time.monotonic()
        while not pipe.poll(SECONDS):
            if _is_stuck(pid, spent, began):
                return verdicts, "hang"
        try:
            verdicts.append(pipe.recv())
        except (EOFError, OSError):
            return verdicts, "crash"
    return verdicts, ""


def try_again(results: dict[str, Any], run: Callable[[int], Verdict]) -> None:
    """Run the faults of an earlier run once more; those that are none any more are listed as mended."""
    left = []
    for fault in results["faults"]:
        verdict = run(fault["number"])
        if verdict.outcome in FAULTS:
            left.append(verdict.document())
            continue
        counts = Counter(results["counts"][fault["kind"]])
        counts[fault["outcome"]] -= 1
        counts[verdict.outcome] += 1
        results["counts"][fault["kind"]] = dict(sorted((+counts).items()))
        results.setdefault("mended", []).append({**fault, "now": verdict.outcome})
    results["faults"] = left


@cache
def prepared() -> tuple[Path, Path, tempfile.TemporaryDirectory[str]]:
    """Sound inputs, a folder to mutate them in, and what removes both; this process is watched from now on."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    inputs, box = make_inputs(Path(folder.name) / "inputs"), Path(folder.name) / "box"
    watch()
    return inputs, box, folder


def measure(
    seed: int, inputs: int, kinds: list[str], kept: dict[str, Any] | None, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """So many inputs of a seed, kept batch by batch."""
    sound, box, _ = prepared()
    results = kept if kept and kept["kinds"] == kinds else {"kinds": kinds, "inputs": 0, "seconds": 0.0}
    results = {"counts": {}, "faults": [], **results}
    start, before = time.monotonic(), results["seconds"]
    try_again(results, lambda number: batch(sound, box, range(number, number + 1), seed, kinds)[0])
    while results["inputs"] < inputs:
        numbers = range(results["inputs"], min(results["inputs"] + BATCH, inputs))
        counts = {kind: Counter(outcomes) for kind, outcomes in results["counts"].items()}
        for verdict in batch(sound, box, numbers, seed, kinds):
            counts.setdefault(verdict.kind, Counter())[verdict.outcome] += 1
            if verdict.outcome in FAULTS:
                results["faults"].append(verdict.document())
                print(verdict, flush=True)
        results["counts"] = {kind: dict(sorted(counts[kind].items())) for kind in kinds if kind in counts}
        results["inputs"] = numbers.stop
        results["seconds"] = round(before + time.monotonic() - start, 1)
        keep(results)
    return results


def cells(asked: argparse.Namespace) -> Cells:
    """One seed; with `--repeat`, one of its inputs is run first, in this process."""
    kinds = asked.kinds.split(",")
    if asked.repeat is not None:
        sound, box, _ = prepared()
        print(run_one(sound, box, asked.repeat, asked.seed, kinds))
        input(f"{box} is there until you press Enter ")
        raise SystemExit
    return {f"seed {asked.seed}": {"seed": asked.seed, "inputs": asked.inputs, "kinds": kinds}}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", type=int, default=1000, help="how many in all, those of earlier runs included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(SUBJECTS), help="some of: %(default)s")
    parser.add_argument("--repeat", type=int, metavar="NUMBER", help="one input, in this process")


BENCHMARK = Benchmark(
    "fuzz", cells, measure, resumes=True, about=lambda cells: {"seconds_per_input_allowed": SECONDS},
    said=lambda cell: f"{cell['inputs']} inputs, {len(cell['faults'])} faults",
    complete=lambda cell, how: cell["inputs"] >= how["inputs"] and not cell["faults"], options=options,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
