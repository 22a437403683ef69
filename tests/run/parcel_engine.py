"""An engine that does all that a cluster's does but for the cluster: what travels is pickled, and solved from its
parcel."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from isomerge.run.cluster.parcel import FOLDER, pack
from isomerge.run.cluster.worker import solve_unit, take_unit
from isomerge.run.local_engine import Demand
from isomerge.run.unit_work import Solved, UnitWork
from isomerge.symmetry.units import Unit


class ParcelEngine:
    """One unit after the other, as a worker of this process solves it."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.returned: list[int] = []
        """Bytes that go through the object store, by unit."""

    def run(self, work: UnitWork, demand: Demand) -> Generator[tuple[Unit, Solved], None, None]:
        """See `isomerge.run.local_engine.Engine.run`."""
        (demand.folder / FOLDER).mkdir(exist_ok=True)
        parcel = pack(work, demand.folder / FOLDER)
        for unit in demand.units:
            there = pickle.dumps((parcel, work.numbers[unit]))
            back = pickle.dumps(solve_unit(*pickle.loads(there)))
            self.sent.append(len(there))
            self.returned.append(len(back))
            yield unit, take_unit(work, unit, pickle.loads(back))


def use(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, runs of the Python API have this engine."""

    @contextmanager
    def engine_of(name: str, address: str | None = None):
        yield engine

    monkeypatch.setattr("isomerge.commands.opening.engine_of", engine_of)
