"""Engines work on the units of a run; the local one does so in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from isomerge.models.peak_memory import free_memory
from isomerge.observe.live.accelerator import CPU
from isomerge.run.cost import LIBRARIES
from isomerge.run.pipeline import ahead, beside, expected, libraries_frozen, one_thread_each, spread, within
from isomerge.run.unit_work import Solved, UnitWork
from isomerge.symmetry.units import Unit

EXPECTED = 1 << 30
"""Stored bytes of the largest unit that the system is asked to read ahead."""
FREE = 0.8
"""Of the memory that is free, what several jobs may take when no limit is given."""
UNASKED = 0.5
"""The same where their number was not asked for either."""


@dataclass(frozen=True)
class Demand:
    """Which units are left to be worked on, what they take, and what they may take."""

    units: Sequence[Unit]
    sizes: Mapping[Unit, int]
    """Stored bytes in all models, of every unit."""
    memory: Mapping[Unit, float]
    """Bytes that each takes while it is worked on, as estimated."""
    folder: Path
    """That of the unfinished output."""
    jobs: int | None = None
    max_memory: int | None = None


class Engine(Protocol):
    """Works on units; what is written does not depend on which engine does."""

    def run(self, work: UnitWork, demand: Demand) -> Generator[tuple[Unit, Solved], None, None]:
        """Every unit of a demand with what became of it, as each is ready, in any order.

        Closing the generator ends what is still being worked on.

        Raises:
            IsomergeError: what was found wrong while a unit was worked on, or with the machines.
        """
        ...


class LocalEngine:
    """In this process: several units at once, each by one thread, so that results do not depend on how many there
    are.

    As many as ``jobs``, or else as torch has threads, as far as there is room; but on a device one after the other.
    """

    def run(self, work: UnitWork, demand: Demand) -> Generator[tuple[Unit, Solved], None, None]:
        """See `Engine.run`."""

        still, threads = not any(map(work.moves, demand.units)), torch.get_num_threads()
        workers = demand.jobs or (threads if still or (threads > 1 and work.device == CPU) else 0)
        order = spread(demand.units, demand.sizes.__getitem__) if workers else demand.units

        def expect(unit: Unit) -> None:
            if demand.sizes[unit] > EXPECTED:  # it would take the place of what is read before it
                return
            for model in work.models:
                for block in unit.blocks:
                    model.expect(block)

        with one_thread_each(workers), libraries_frozen():
            yield from ahead(work.solve, expected(order, expect), _room(demand, still), workers)


def _room(demand: Demand, still: bool) -> Callable[[Sequence[Unit]], bool]:
    """Whether units may be worked on at once: within ``max_memory``; with ``jobs`` alone, within most of what is
    free; with neither, within half of it where they are matched, and else beside the largest."""
    if demand.max_memory is not None:
        return within(demand.memory.__getitem__, demand.max_memory - LIBRARIES)
    if demand.jobs:
        return within(demand.memory.__getitem__, FREE * free_memory())
    if not still:
        return within(demand.memory.__getitem__, UNASKED * free_memory())
    return beside(demand.memory.__getitem__)
