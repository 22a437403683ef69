"""Merges killed by SIGKILL at random moments, run again, and compared byte by byte with one that was left alone.

    python -m benchmarks.kills --runs 200

Each run is a forked process; it is killed once to four times (at least once: a time after which it has ended is
drawn again), after a time between nothing and what a whole run takes, and then left to end. After every kill the
output is absent or whole, and the inputs are what they were.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import Benchmark, quiet

OPTIONS: list[dict[str, Any]] = [
    {"out_shard_size": 200_000},
    {"align": False, "out_shard_size": 100_000},
    {"method": "ties", "base_model": "a", "out_shard_size": 10_000_000},
    {"dtype": "bfloat16", "out_shard_size": 50_000},
]
"""What is merged, in turn: aligned, not aligned, with task vectors, in half precision and many files."""


SMALL = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 200, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
"""Half a megabyte."""


def make_inputs(folder: Path, sizes: dict[str, int]) -> list[str]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    for seed, name in enumerate("abc"):
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / name)
    return [str(folder / name) for name in "abc"]


def merge(models: list[str], out: Path, options: dict[str, Any], **how: Any) -> None:
    import isomerge

    base = {"base_model": models[0]} if "base_model" in options else {}
    isomerge.merge(models, out=out, **{**options, **base}, **how)


def forked(models: list[str], out: Path, options: dict[str, Any], after: float | None) -> int:
    """A merge in a process of its own, killed after so many seconds; the status: 0, or -9 when the kill came in
    time.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            merge(models, out, options)
            code = 0
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def stage(out: Path) -> str:
    """How far a killed run had come."""
    partial = out.parent / f".{out.name}.partial"
    journal = partial / "journal.jsonl"
    if out.exists():
        return "published"
    if not journal.is_file():
        return "not begun"
    units = journal.read_bytes().count(b"\n") - 1
    if (partial / "model" / "README.md").exists():
        return "finishing"
    return "between units" if units > 0 else "before the first unit"


def killed_run(
    models: list[str], out: Path, options: dict[str, Any], seconds: float, rng: Random
) -> tuple[list[str], str]:
    """The stages at which one merge was killed, and what is wrong with the end ('' when nothing is)."""
    stages: list[str] = []
    wanted = rng.choice([1, 1, 2, 4])
    while len(stages) < wanted:
        status = forked(models, out, options, rng.uniform(0, 1.1 * seconds))
        if status not in (0, -signal.SIGKILL):
            return stages, f"status {status} of a killed run"
        if status == -signal.SIGKILL:
            stages.append(stage(out))
        elif not stages:  # the kill came too late: this one is drawn again
            shutil.rmtree(out)
        if out.exists():
            return stages, ""
    status = forked(models, out, options, None)
    return stages, "" if status == 0 else f"status {status} of the last run"


class Room:
    """Inputs, and what merges of them write when nobody kills them."""

    def __init__(self, folder: Path):
        self.folder, self.models = folder, make_inputs(folder / "inputs", SMALL)
        merge(self.models, folder / "first", {})  # so that the forks need not import anything
        self.inputs = files_of(folder / "inputs")
        self.seconds: list[float] = []
        self.wanted: list[dict[str, bytes]] = []
        for number, options in enumerate(OPTIONS):
            began = time.monotonic()
            assert forked(self.models, folder / f"whole-{number}", options, None) == 0
            self.seconds.append(round(time.monotonic() - began, 3))
            self.wanted.append(files_of(folder / f"whole-{number}"))

    def run(self, number: int, seed: int) -> tuple[list[str], str]:
        rng, which = Random(f"{seed}-{number}"), number % len(OPTIONS)
        out = self.folder / "runs" / f"out-{number}"
        stages, wrong = killed_run(self.models, out, OPTIONS[which], self.seconds[which], rng)
        if not wrong and files_of(out) != self.wanted[which]:
            wrong = "other bytes"
        if not wrong and files_of(self.folder / "inputs") != self.inputs:
            wrong = "an input changed"
        shutil.rmtree(self.folder / "runs")
        return stages, wrong


@cache
def room() -> tuple[Room, tempfile.TemporaryDirectory[str]]:
    """A room for all runs of this process; its folder goes with it."""
    folder = tempfile.TemporaryDirectory(prefix="kills-")
    return Room(Path(folder.name)), folder


def measure(
    seed: int, runs: int, kept: dict[str, Any] | None, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """So many runs, counted and kept twenty at a time."""
    whole, _ = room()
    counts = kept or {"runs": 0, "runs_killed": 0, "kills": 0, "killed": {}, "faults": [], "seconds": 0.0}
    while counts["runs"] < runs:
        began, stages = time.monotonic(), Counter(counts["killed"])
        for number in range(counts["runs"], min(runs, counts["runs"] + 20)):
            where, wrong = whole.run(number, seed)
            stages.update(where)
            counts |= {
                "runs": number + 1,
                "kills": counts["kills"] + len(where),
                "runs_killed": counts["runs_killed"] + bool(where),
            }
            if wrong:
                counts["faults"].append({"run": number, "stages": where, "wrong": wrong})
        counts |= {"killed": dict(stages.most_common()), "seconds_of_a_run": whole.seconds}
        counts["seconds"] = round(counts["seconds"] + time.monotonic() - began, 1)
        keep(counts)
        print(f"{counts['runs']} runs, {counts['kills']} kills, {len(counts['faults'])} faults", flush=True)
    return counts


BENCHMARK = Benchmark(
    "kills", lambda asked: {f"seed {asked.seed}": {"seed": asked.seed, "runs": asked.runs}}, measure, resumes=True,
    about=lambda cells: {"options": OPTIONS}, complete=lambda cell, how: cell["runs"] >= how["runs"],
    options=lambda parser: (
        parser.add_argument("--runs", type=int, default=200), parser.add_argument("--seed", type=int, default=0),
    ),
)  # fmt: skip

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()
