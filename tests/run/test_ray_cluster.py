"""The Ray engine on a real cluster of several nodes on this machine: same bytes, whatever dies in the middle.

One test, as a cluster takes ten seconds to start; what needs none is in `test_parcels`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import cloudpickle

import isomerge
from isomerge.errors import ClusterError, IsomergeError
from isomerge.fusion import registry
from isomerge.run.cluster import ray_engine
from solve.disguises import disguise, files_of, perturb, single
from toys import overwrite, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


def gated(tensors: list[torch.Tensor], *, folder: str) -> torch.Tensor:
    """The mean; the worker says where it is, and waits until it may go on."""
    here = Path(folder) / f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}"
    here.touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
    return sum(tensors[1:], tensors[0]) / len(tensors)


def deadly(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Ends the process that works on it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return tensors[0]


class Nodes:
    """A cluster of two nodes with a CPU each, whose head takes no work, and what is merged on it."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        # that a machine is gone is seen in a second, not in twenty
        quick = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 300,
            "health_check_failure_threshold": 3,
        }
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.folder = folder
        self.a = single("gpt2", folder / "a")
        self.b = disguise("gpt2", perturb(self.a, folder / "near", 0.2), folder / "b", 3)

    def merge(self, out: str, **how: Any) -> dict[str, bytes]:
        """A merge by the cluster unless another engine is named; all files."""
        given = {"engine": "ray", "out_shard_size": 60_000, **how}
        isomerge.merge([self.a, self.b], out=self.folder / "runs" / out, **given)
        return files_of(self.folder / "runs" / out)

    def local(self, out: str, **how: Any) -> dict[str, bytes]:
        """The same by one job of this process."""
        return self.merge(out, engine="local", jobs=1, **how)

    def remove(self, node_id: str) -> None:
        """A node is gone from one moment to the next."""
        chosen = next(node for node in self.nodes if node.node_id == node_id)
        self.cluster.remove_node(chosen, allow_graceful=False)


@contextmanager
def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster that this process is connected to."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    for method in (gated, deadly):
        monkeypatch.setitem(registry._METHODS, method.__name__, registry.describe(method))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have this module
    nodes = Nodes(folder)
    ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="error")
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes, then a worker less, then a node less; and an error is told as it is without a cluster."""
    with running(tmp_path, monkeypatch) as nodes:
        same_bytes(nodes)
        the_other_engine_goes_on(nodes)
        a_worker_is_killed(nodes)
        what_cannot_be_done_is_told(nodes, monkeypatch)
        a_node_is_lost(nodes)


def same_bytes(nodes: Nodes) -> None:
    """As by one job; progress is told unit by unit."""
    told: list[str] = []
    assert nodes.merge("two", observer=lambda unit, done, total: told.append(unit)) == nodes.local("whole")
    assert len(told) > 10


def the_other_engine_goes_on(nodes: Nodes) -> None:
    """A run on the cluster that is stopped, as by Ctrl-C."""
    seen: list[str] = []

    def stop(unit: str, done: int, total: int) -> None:
        seen.append(unit)
        if len(seen) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nodes.merge("stopped", jobs=3, observer=stop)
    rest: list[str] = []
    again = nodes.local("stopped", observer=lambda unit, done, total: rest.append(unit))
    assert again == files_of(nodes.folder / "runs" / "whole")
    assert not set(seen[:5]) & set(rest)  # what was done is not done again


def begun(folder: Path) -> set[tuple[str, int]]:
    """Node and process of all that have come to the gate."""
    names = [p.name.rpartition("-") for p in folder.iterdir() if p.name != "go"]
    return {(node, int(pid)) for node, _, pid in names}


def harmed(nodes: Nodes, name: str, harm: Callable[[str, int], None]) -> set[tuple[str, int]]:
    """A merge on the cluster that is harmed while two units are in the middle; its bytes are those of a local one.

    ``harm`` is given the node and the process of one of them. Returns those that have had units in the end.
    """
    gate = nodes.folder / name
    gate.mkdir()
    how = {"method": "gated", "parameters": {"folder": str(gate)}}

    def wait_and_harm() -> None:
        while len(begun(gate)) < 2:
            time.sleep(0.02)
        harm(*min(begun(gate)))
        (gate / "go").touch()

    thread = threading.Thread(target=wait_and_harm, daemon=True)
    thread.start()
    found = nodes.merge(f"{name}-ray", **how)
    thread.join()
    places = begun(gate)
    assert found == nodes.local(f"{name}-local", **how)
    return places


def a_worker_is_killed(nodes: Nodes) -> None:
    """By SIGKILL: a new one does its unit again, and has begun before the other one goes on."""
    killed: list[int] = []

    def kill(node: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        deadline = time.monotonic() + 60
        while len(begun(nodes.folder / "worker")) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)

    places = harmed(nodes, "worker", kill)
    assert len({pid for _, pid in places} - set(killed)) >= 2


def a_node_is_lost(nodes: Nodes) -> None:
    """The other one does all that is left."""
    gone: list[str] = []

    def remove(node: str, pid: int) -> None:
        nodes.remove(node)
        gone.append(node)

    places = harmed(nodes, "node", remove)
    assert {node for node, _ in places} > set(gone)
    assert gone[0] not in {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def what_cannot_be_done_is_told(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged input in the local engine's words, and nothing is left; a cluster that is not up to it leaves what is
    done."""
    bad = perturb(nodes.a, nodes.folder / "bad", 0.1)
    found = tensors(bad)
    found["transformer.h.1.ln_1.weight"][0] = torch.nan
    overwrite(bad, found)
    runs = nodes.folder / "runs"
    for engine in ("local", "ray"):
        with pytest.raises(IsomergeError, match=r"ln_1\.weight has NaN or infinite values") as told:
            isomerge.merge([nodes.a, bad], out=runs / "out", engine=engine)
        assert not isinstance(told.value, ClusterError)
        assert not (runs / ".out.partial").exists()
    with monkeypatch.context() as context:
        context.setattr(ray_engine, "LIBRARIES", 1e15)
        with pytest.raises(
            ClusterError, match=r"needs about 1e\+06 GB, and the largest machine of the cluster has"
        ):
            nodes.merge("out")
    with monkeypatch.context() as context:
        context.setattr(ray_engine, "RETRIES", 0)
        with pytest.raises(ClusterError, match=r"was lost with its worker 1 times .*run the same command again"):
            nodes.merge("out", method="deadly")
    assert (runs / ".out.partial" / "journal.jsonl").is_file()
    assert not (runs / ".out.partial" / "units").exists()
