"""The connection to a Ray cluster, or a cluster of this machine alone, and what its machines have."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf

from isomerge.errors import ClusterError, IsomergeError

UNTOLD = "RAY_IGNORE_UNHANDLED_ERRORS"
"""The environment variable without which Ray prints a traceback for every unit that ends beside one that has
failed: its folder is gone then, and what went wrong is told already."""
STORE = 100 << 20
"""Bytes of the object store of a cluster that is started here; nothing of size goes through it."""


def check_ray() -> None:
    """Raises IsomergeError where Ray is not installed."""
    if find_spec("ray") is None:
        raise IsomergeError("--engine ray needs Ray, which is not installed: pip install 'isomerge[ray]'")


@contextmanager
def connected(address: str | None, jobs: int | None) -> Iterator[None]:
    """Connected to a cluster; one that was started for it is stopped at the end.

    Args:
        address: ``auto`` for the cluster that this machine is part of, or ``host:port``; None starts one of this
            machine alone, unless this process is connected already.
        jobs: tasks at once that a cluster of this machine alone has room for; by default one for each CPU.

    Raises:
        ClusterError: there is no such cluster.
    """
    check_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported about a user's run
    import ray

    if ray.is_initialized():
        yield
        return
    own = {"num_cpus": jobs, "object_store_memory": STORE, "include_dashboard": False}
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own)
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where = f"--address {address}: no cluster answers" if address else "Ray does not start on this machine"
        words = " ".join(str(error).split())[:200]
        raise ClusterError(f"{where} ({words}); start one with `ray start`, or correct the address") from None
    before = os.environ.get(UNTOLD)
    os.environ[UNTOLD] = "1"
    try:
        yield
    finally:
        ray.shutdown()
        if before is None:
            del os.environ[UNTOLD]


def cpus() -> int:
    """How many tasks the machines that are alive work on at once."""
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def check_gpus(device: str) -> None:
    """Raises ClusterError where no machine has a GPU for units that are to be matched on one."""
    import ray

    if not ray.cluster_resources().get("GPU"):
        raise ClusterError(f"--device {device}: no machine of the cluster has a GPU; leave --device out")


def largest_memory() -> float:
    """Bytes that the largest machine with a CPU has for tasks; minus infinity where there is none."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max((float(has.get("memory", 0)) for has in alive if has.get("CPU")), default=-inf)
