"""Merges on Ray clusters whose workers are killed in the middle, compared byte by byte with ``-j 1`` in one
process.

    python -m benchmarks.ray_workers --runs 20

The clusters are real ones, of two and of four nodes, all on this machine (`ray.cluster_utils.Cluster`); the
driver's node takes no work. In every run a worker process drawn at random gets SIGKILL at a moment drawn at random;
then, once for each cluster, a whole node is taken away; then drivers are killed, and the other engine goes on. Runs
in which the moment came too late are made again, so that every one that is counted lost something.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.harness import Benchmark, Cells, quiet
from benchmarks.kills import files_of, make_inputs, merge

OPTIONS: list[dict[str, Any]] = [
    {}, {"spaces": "all"}, {"method": "ties", "base_model": "a"}, {"dtype": "bfloat16"},
]  # fmt: skip
"""What is merged, in turn: aligned, with the residual stream, with task vectors, in half precision."""
SHARD = 3_000_000
in_shards = partial(merge, out_shard_size=SHARD)
SIZES = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8, "vocab_size": 2000, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
"""15 MB: units take tenths of seconds, so that there is a middle to be killed in."""


def workers_of(nodes: list[Any]) -> list[psutil.Process]:
    """The worker processes of nodes, busy ones only where there are any."""
    workers = []
    for node in nodes:
        raylet = node.all_processes["raylet"][0].process.pid
        children = psutil.Process(raylet).children(recursive=True)
        workers += [p for p in children if _title(p).startswith("ray::") and not _title(p).endswith("Agent")]
    return [p for p in workers if not _title(p).startswith("ray::IDLE")] or workers


def is_unit(label: str) -> bool:
    """Whether progress is told of a unit that is ready, not of a pass over whole models."""
    return bool(label) and ": " not in label and label.endswith((".weight", ".bias"))


def _title(process: psutil.Process) -> str:
    try:
        return process.cmdline()[0]
    except (psutil.Error, IndexError):
        return "gone"


class Fault:
    """Does harm once, some time after the first unit of a run is ready."""

    def __init__(self, after: float, harm: Callable[[], str]) -> None:
        self.after, self.harm, self.done = after, harm, ""
        self._began, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def observer(self, unit: str, done: int, total: int) -> None:
        """Of the merge: the first unit starts the clock."""
        if is_unit(unit):
            self._began.set()

    def _wait(self) -> None:
        self._began.wait()
        if not self._over.wait(self.after):
            self.done = self.harm()

    def run(self, work: Callable[[], None]) -> None:
        self._thread.start()
        work()
        self._over.set()
        self._began.set()
        self._thread.join()


def killed_worker(rng: Random, nodes: list[Any]) -> str:
    """SIGKILL for a worker drawn at random; what it was doing."""
    workers = sorted(workers_of(nodes), key=lambda p: p.pid)
    if not workers:
        return ""
    chosen = rng.choice(workers)
    title = _title(chosen)
    chosen.send_signal(signal.SIGKILL)
    return title.removeprefix("ray::")


def removed_node(rng: Random, cluster: Any, nodes: list[Any]) -> str:
    """A node drawn at random among those that are at work is gone from one moment to the next; what it was
    doing."""
    busy = [node for node in nodes if any(not _title(p).startswith("ray::IDLE") for p in workers_of([node]))]
    if not busy:
        return ""
    chosen = rng.choice(busy)
    title = _title(workers_of([chosen])[0])
    cluster.remove_node(chosen, allow_graceful=False)
    return title.removeprefix("ray::")


class Bench:
    """Inputs, what is wanted of them, and the faults that were found."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.models = make_inputs(folder / "inputs", SIZES)
        self.wanted, self.seconds = [], []
        self.faults: list[dict[str, Any]] = []
        for number, options in enumerate(OPTIONS):
            began = time.monotonic()
            in_shards(self.models, folder / f"whole-{number}", options, jobs=1)
            self.seconds.append(round(time.monotonic() - began, 2))
            self.wanted.append(files_of(folder / f"whole-{number}"))

    def check(self, what: str, number: int, out: Path, which: int) -> None:
        """Compare an output with that of one process, then remove it."""
        got = files_of(out) if out.exists() else {}
        left = [p.name for p in out.parent.iterdir() if p != out]
        if got != self.wanted[which] or left:
            other = sorted(k for k in {*got, *self.wanted[which]} if got.get(k) != self.wanted[which].get(k))
            self.faults.append({"what": what, "run": number, "other": other, "left": left})
            print(self.faults[-1], flush=True)
        shutil.rmtree(out.parent)

    def on_cluster(self, size: int, runs: int) -> dict[str, Any]:
        """Runs with a killed worker, and one that loses a node, on a cluster of ``size`` nodes."""
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        nodes = [cluster.add_node(num_cpus=1) for _ in range(size)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        counts: dict[str, Any] = {"nodes": size, "kills": 0, "busy": 0, "late": 0, "node_removed_with": ""}
        try:
            self._span(0)  # workers start, and import what they need
            span = [self._span(which) for which in range(len(OPTIONS))]
            number = 0
            while counts["kills"] < runs:
                rng, which = Random(f"{self.seed}-{size}-{number}"), number % len(OPTIONS)
                done = self._harmed(rng, number, which, size, span[which], lambda r=rng: killed_worker(r, nodes))
                counts["kills"] += bool(done)
                counts["late"] += not done
                counts["busy"] += bool(done) and not done.startswith("IDLE")
                number += 1
            rng = Random(f"{self.seed}-{size}-node")
            while not counts["node_removed_with"]:
                counts["node_removed_with"] = self._harmed(
                    rng, 0, 0, size, span[0], lambda: removed_node(rng, cluster, nodes)
                )
        finally:
            ray.shutdown()
            cluster.shutdown()
        return counts

    def _span(self, which: int) -> float:
        """Seconds from the first unit to the end of an undisturbed run, whose output is checked."""
        began: list[float] = []

        def observer(unit: str, done: int, total: int) -> None:
            if is_unit(unit):
                began.append(time.monotonic())

        out = self.folder / "runs" / "out"
        in_shards(self.models, out, OPTIONS[which], engine="ray", observer=observer)
        self.check("undisturbed", which, out, which)
        return began[-1] - began[0]

    def _harmed(self, rng: Random, number: int, which: int, size: int, span: float, harm: Callable[[], str]) -> str:
        """One run that is harmed at a moment drawn at random; what was lost, empty where the moment came too
        late."""
        fault = Fault(rng.random() * span, harm)
        out = self.folder / "runs" / "out"
        began = time.monotonic()
        fault.run(lambda: in_shards(self.models, out, OPTIONS[which], engine="ray", observer=fault.observer))
        took = time.monotonic() - began
        self.check(f"{size} nodes, harmed", number, out, which)
        print(f"{size} nodes, run {number}: {fault.done or 'too late'}, {took:.1f} s", flush=True)
        return fault.done

    def other_engine(self) -> dict[str, int]:
        """Drivers killed by SIGKILL, and the other engine goes on: from Ray to local, and back."""
        counts = {"ray_then_local": 0, "local_then_ray": 0}
        for first, then in (("ray", "local"), ("local", "ray")):
            out = self.folder / "runs" / "out"
            journal = out.parent / ".out.partial" / "journal.jsonl"
            command = [sys.executable, "-m", "isomerge", "merge", *self.models, "-o", str(out)]
            command += ["--out-shard-size", str(SHARD), "--engine", first, "-q"]
            driver = subprocess.Popen([*command, "-j", "1"], start_new_session=True)
            while driver.poll() is None and not (journal.is_file() and journal.read_bytes().count(b"\n") > 4):
                time.sleep(0.02)
            driver.kill()
            driver.wait()
            lines = journal.read_bytes().count(b"\n") - 1 if journal.is_file() else 0
            in_shards(self.models, out, OPTIONS[0], engine=then, jobs=2)
            self.check(f"{first}, then {then}", 0, out, 0)
            counts[f"{first}_then_{then}"] = lines
        return counts


@cache
def bench(seed: int) -> tuple[Bench, tempfile.TemporaryDirectory[str]]:
    """One for all runs of this process; its folder goes with it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tempfile.TemporaryDirectory(prefix="ray-workers-")
    return Bench(Path(folder.name), seed), folder


def measure(seed: int, nodes: int, kills: int) -> dict[str, Any]:
    """A cluster of so many nodes, or, without nodes, drivers that are killed before the other engine goes on."""
    room, _ = bench(seed)
    room.faults, began = [], time.monotonic()
    counts = room.on_cluster(nodes, kills) if nodes else room.other_engine()
    return {**counts, "faults": room.faults, "seconds": round(time.monotonic() - began, 1)}


def about(cells: dict[str, Any]) -> dict[str, Any]:
    import ray
    import torch

    return {"options": OPTIONS, "versions": {"ray": ray.__version__, "torch": torch.__version__}}


def cells(asked: Namespace) -> Cells:
    """Two clusters, and drivers that are killed."""
    clusters = {f"{n} nodes": {"seed": asked.seed, "nodes": n, "kills": asked.runs // 2} for n in (2, 4)}
    return {**clusters, "other engine": {"seed": asked.seed, "nodes": 0, "kills": 0}}


BENCHMARK = Benchmark(
    "ray", cells, measure, about=about, complete=lambda cell, how: cell.get("kills", 0) >= how["kills"],
    options=lambda parser: (
        parser.add_argument("--runs", type=int, default=20, help="with a killed worker, on both clusters together"),
        parser.add_argument("--seed", type=int, default=0),
    ),
)  # fmt: skip

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()
