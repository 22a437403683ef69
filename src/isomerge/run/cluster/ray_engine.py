"""The Ray engine: every unit is a task of a cluster; the driver plans, writes the output and keeps its journal.

(Ray: Moritz et al., "Ray: a distributed framework for emerging AI applications", OSDI 2018.)
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from isomerge.errors import ClusterError, IsomergeError
from isomerge.files import disk_errors
from isomerge.observe.live.accelerator import CPU
from isomerge.run.cluster import connection
from isomerge.run.cluster.parcel import FOLDER, Parcel, pack
from isomerge.run.cluster.worker import SolvedUnit, solve_unit, take_unit
from isomerge.run.cost import LIBRARIES
from isomerge.run.local_engine import Demand
from isomerge.run.unit_work import Solved, UnitWork
from isomerge.symmetry.units import Unit

RETRIES = 5
"""How often a unit is begun again whose worker or machine is lost; one that always ends its worker must end the
run."""
AHEAD = 2
"""Units per CPU that are handed over without ``jobs``: the next ones wait at the machines, and a cluster that grows
on demand sees the demand."""
PATIENCE = 600.0
"""Seconds that a cluster without a machine that is large enough may take to get one."""
LOOK = 5.0
"""Seconds after which the machines are looked at, where no unit is ready."""


class RayEngine:
    """Units as tasks of a cluster; closed at the end of a run.

    Through the object store go paths and small results; tensors go by the storage that all machines share, on which
    the checkpoints and the output's folder must be, under the same paths. Each task has one thread and asks for the
    memory that its unit is estimated to take, and for a GPU where units are matched on one.

    Args:
        address: see `isomerge.run.cluster.connection.connected`.
    """

    def __init__(self, address: str | None = None) -> None:
        connection.check_ray()
        self.address = address
        self._open = ExitStack()
        self._connected = False

    def close(self) -> None:
        """Leave the cluster; one that was started for this engine ends."""
        self._open.close()
        self._connected = False

    def run(self, work: UnitWork, demand: Demand) -> Generator[tuple[Unit, Solved], None, None]:
        """See `isomerge.run.local_engine.Engine.run`; the largest units are begun first.

        Raises:
            ClusterError: no cluster, no machine that is large enough, a unit that lost its worker too often, or a
                machine that does not see the same files.
        """
        if not demand.units:
            return
        if not self._connected:
            self._open.enter_context(connection.connected(self.address, demand.jobs))
            self._connected = True
        if work.device != CPU:
            connection.check_gpus(work.device)
        folder = demand.folder / FOLDER
        with disk_errors(folder):
            remove_at_once(folder)  # what workers of a killed run have left
            folder.mkdir()
        tasks = _Tasks(work, demand, pack(work, folder), patience=PATIENCE if self.address else 0.0)
        try:
            yield from tasks.solved()
        finally:
            # without their parcel units that wait end at once. They are not cancelled: Ray ends this process with a
            # failed check where
            # a task that it has begun again after a worker's death is cancelled and then answers (task_manager.cc)
            remove_at_once(folder)


def remove_at_once(folder: Path) -> None:
    """Remove a folder that workers may still write to: under another name first, so that no file is made while it
    is emptied."""
    aside = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    except OSError:  # a file system that does not rename it now
        aside = folder
    shutil.rmtree(aside, ignore_errors=True)


class _Tasks:
    """The tasks of one run of units."""

    def __init__(self, work: UnitWork, demand: Demand, parcel: Parcel, *, patience: float) -> None:
        import ray

        self.work, self.demand, self.parcel, self.patience = work, demand, parcel, patience
        self._solve = ray.remote(solve_unit)
        self._running: dict[Any, Unit] = {}

    def solved(self) -> Generator[tuple[Unit, Solved], None, None]:
        """Every unit, as it is ready."""
        waiting = sorted(self.demand.units, key=self._need)  # the largest at the end, where they are taken
        if not self.patience:
            self._check_room(waiting[-1])
        while waiting or self._running:
            window = self.demand.jobs or max(AHEAD * connection.cpus(), AHEAD)
            while waiting and len(self._running) < window:
                self._begin(waiting.pop())
            reference, unit = self._next()
            solved = self._result(reference, unit)
            del self._running[reference]
            yield unit, take_unit(self.work, unit, solved)

    def _begin(self, unit: Unit) -> None:
        task = self._solve.options(
            name=unit.key,
            num_cpus=1,
            num_gpus=0 if self.work.device == CPU else 1,
            memory=self._need(unit),
            max_retries=RETRIES,
            scheduling_strategy="SPREAD",
        )
        self._running[task.remote(self.parcel, self.work.numbers[unit])] = unit

    def _need(self, unit: Unit) -> int:
        """Bytes that a worker takes for a unit."""
        return int(self.demand.memory[unit] + LIBRARIES)

    def _next(self) -> tuple[Any, Unit]:
        """A task that has ended; machines are looked at while none has."""
        import ray

        since = time.monotonic()
        while True:
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=LOOK)
            if ready:
                return ready[0], self._running[ready[0]]
            if time.monotonic() - since >= self.patience:
                self._check_room(max(self._running.values(), key=self._need))
                since = time.monotonic()

    def _check_room(self, unit: Unit) -> None:
        """Refuse to wait for a unit that no machine can take."""
        need, has = self._need(unit), connection.largest_memory()
        if has >= need:
            return
        what = (
            f"the largest machine of the cluster has {has / 1e9:.2g} GB for tasks"
            if has >= 0
            else "no machine is left"
        )
        raise ClusterError(
            f"the unit of {unit.key} needs about {need / 1e9:.2g} GB, and {what}: add one that is large enough, "
            "then run the same command again to go on"
        )

    def _result(self, reference: Any, unit: Unit) -> SolvedUnit:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            return ray.get(reference)
        except RayTaskError as error:  # what the worker raised, told as if it had been here
            if isinstance(error.cause, IsomergeError):
                raise error.cause from None
            if isinstance(error.cause, Exception):
                raise error.cause from error
            raise
        except RayError as error:
            raise ClusterError(
                f"the unit of {unit.key} was lost with its worker {RETRIES + 1} times ({type(error).__name__}): "
                "look whether a machine runs out of memory; run the same command again to go on"
            ) from None
