"""Merges killed by SIGKILL at random moments, run again, and compared byte by byte with one that was left alone.

    python benchmarks/kills.py --runs 200      # writes results/kills.json

Each run is a forked process; it is killed once to four times (at least once: a time after which it has ended is
drawn again), after a time between nothing and what a whole run takes, and then left to end. After every kill the
output is absent or whole, and the inputs are what they were.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

RESULTS = Path(__file__).parent / "results" / "kills.json"
OPTIONS: list[dict[str, Any]] = [
    {"out_shard_size": 200_000},
    {"align": False, "out_shard_size": 100_000},
    {"method": "ties", "base_model": "a", "out_shard_size": 10_000_000},
    {"dtype": "bfloat16", "out_shard_size": 50_000},
]
"""What is merged, in turn: aligned, not aligned, with task vectors, in half precision and many files."""


def make_inputs(folder: Path) -> list[Path]:
    """Three Llamas of four layers and half a megabyte."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 200}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    found = []
    for seed, name in enumerate("abc"):
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**size, **heads)).save_pretrained(folder / name)
        found.append(folder / name)
    return found


def merge(models: list[Path], out: Path, options: dict[str, Any]) -> None:
    """One merge, in this process."""
    import isomerge

    given = dict(options)
    if "base_model" in given:
        given["base_model"] = str(models[0])
    isomerge.merge([str(m) for m in models], out=out, **given)


def forked(models: list[Path], out: Path, options: dict[str, Any], after: float | None) -> int:
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
    """Every file under a folder and its bytes."""
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


def one(
    models: list[Path], out: Path, options: dict[str, Any], seconds: float, rng: Random
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    faults: list[dict[str, Any]] = []
    stages: Counter[str] = Counter()
    kills = killed = 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        models = make_inputs(folder / "inputs")
        merge(models, folder / "first", {})  # so that the forks need not import anything
        before = files_of(folder / "inputs")
        wanted, seconds = [], []
        for number, options in enumerate(OPTIONS):
            began = time.monotonic()
            assert forked(models, folder / f"whole-{number}", options, None) == 0
            seconds.append(time.monotonic() - began)
            wanted.append(files_of(folder / f"whole-{number}"))
        for number in range(given.runs):
            rng, which = Random(f"{given.seed}-{number}"), number % len(OPTIONS)
            out = folder / "runs" / f"out-{number}"
            where, wrong = one(models, out, OPTIONS[which], seconds[which], rng)
            stages.update(where)
            kills += len(where)
            killed += bool(where)
            if not wrong and files_of(out) != wanted[which]:
                wrong = "other bytes"
            if not wrong and files_of(folder / "inputs") != before:
                wrong = "an input changed"
            if wrong:
                faults.append({"run": number, "stages": where, "wrong": wrong})
                print(faults[-1], flush=True)
            shutil.rmtree(folder / "runs")
            if number % 20 == 19:
                print(f"{number + 1} runs, {kills} kills, {len(faults)} faults", flush=True)
    results = {
        "runs": given.runs,
        "runs_killed": killed,
        "seed": given.seed,
        "kills": kills,
        "killed": dict(stages.most_common()),
        "faults": faults,
        "options": OPTIONS,
        "seconds_of_a_run": [round(s, 3) for s in seconds],
        "seconds": round(time.monotonic() - start, 1),
    }
    given.results.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{given.runs} runs, {kills} kills, {len(faults)} faults")


if __name__ == "__main__":
    main()
