"""What the runs of one task say in numbers: by arm, at its best learning rate and across all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.results import Results
from benchmarks.relational.compare import FREQUENCIES, RATES, SEEDS, Cell, best_rate

NEAR = 0.1
"""Nats: losses that are so near the best count as good for the width of a range of learning rates."""
GRID = sorted(RATES)


@dataclass(frozen=True)
class Range:
    """A range of learning rates, in decades (powers of ten)."""

    decades: float
    open: bool
    """Whether it reaches the lowest or the highest rate that was run: it may be wider."""


def width(losses: Mapping[float, float], limit: float) -> Range | None:
    """How wide the range of rates around the best one is whose loss is at most a limit.

    Between two rates the loss is taken as linear in the logarithm of the rate; towards a loss that is not finite,
    the range ends at the last rate whose loss is. None where no rate is good enough.

    Args:
        losses: rate -> loss in nats, infinite where the run failed.
        limit: in nats.
    """
    rates = sorted(losses)
    best = min(rates, key=losses.__getitem__)
    if not losses[best] <= limit:
        return None
    at = rates.index(best)
    low, low_open = _reach(list(reversed(rates[: at + 1])), losses, limit)
    high, high_open = _reach(rates[at:], losses, limit)
    return Range(high - low, low_open or high_open)


def _reach(rates: Sequence[float], losses: Mapping[float, float], limit: float) -> tuple[float, bool]:
    """The logarithm of the last good rate on the way along ``rates``, and whether the way ended before the range
    did."""
    for near, far in itertools.pairwise(rates):
        if losses[far] > limit:
            share = (limit - losses[near]) / (losses[far] - losses[near])  # nought where the far loss is infinite
            return math.log10(near) + share * (math.log10(far) - math.log10(near)), False
    return math.log10(rates[-1]), True


class Summary:
    """The runs of one task.

    Args:
        results: of `compare.open_results`, or of that layout.
    """

    def __init__(self, results: Results) -> None:
        self.results = results

    @property
    def known(self) -> float:
        """The test loss of who knows only frequencies, nats."""
        return loss_of(self.results.get(FREQUENCIES))

    def arms(self, names: Sequence[str]) -> list[str]:
        """Those of the arms that have a run."""
        return [name for name in names if self.sweep(name)]

    def sweep(self, arm: str) -> dict[float, dict[str, Any]]:
        """Rate -> the run of the first seed, those that were made."""
        found = {rate: self.results.get(Cell(arm, rate, SEEDS[0]).key) for rate in GRID}
        return {rate: cell for rate, cell in found.items() if cell}

    def best(self, arm: str) -> float | None:
        """The rate of lowest validation loss, where the whole sweep was made."""
        return best_rate(self.results, arm)

    def runs(self, arm: str) -> dict[int, dict[str, Any]]:
        """Seed -> the run at the best rate, those that were made and whose losses are finite."""
        rate = self.best(arm)
        found = {} if rate is None else {s: self.results.get(Cell(arm, rate, s).key) for s in SEEDS}
        return {seed: cell for seed, cell in found.items() if cell and cell["test"]}

    def values(self, arm: str, value: Callable[[dict[str, Any]], float | None]) -> list[float]:
        """A number of every run at the best rate, by seed; those that lack it are left out."""
        found = (value(cell) for cell in self.runs(arm).values())
        return [x for x in found if x is not None]

    def paired(
        self, arm: str, other: str, value: Callable[[dict[str, Any]], float | None]
    ) -> tuple[list[float], list[float]]:
        """A number of two arms at their best rates, of the seeds that both have."""
        one, two = ({s: value(c) for s, c in self.runs(a).items()} for a in (arm, other))
        seeds = [s for s in one if one[s] is not None and two.get(s) is not None]
        return [float(one[s] or 0) for s in seeds], [float(two[s] or 0) for s in seeds]

    def losses(self, arm: str) -> dict[float, float]:
        """Rate -> test loss of the first seed, infinite where the run failed."""
        return {rate: math.inf if self.failed(cell) else loss_of(cell) for rate, cell in self.sweep(arm).items()}

    def mean(self, arm: str) -> float | None:
        """The mean test loss over all rates, a failed run counting as `known`; None while a rate was not run."""
        losses = self.losses(arm)
        return (
            math.fsum(min(x, self.known) for x in losses.values()) / len(GRID) if len(losses) == len(GRID) else None
        )

    def failed(self, cell: dict[str, Any]) -> bool:
        """Whether a run is not finite, or ends no better than who knows only frequencies."""
        return cell["test"] is None or loss_of(cell) >= self.known

    def best_of_all(self, names: Sequence[str]) -> float:
        """The lowest test loss of any arm's sweep."""
        return min(loss for name in self.arms(names) for loss in self.losses(name).values())

    def milliseconds(self, arm: str, part: str) -> list[float]:
        """Processor time per step of every run, ``gradient`` or ``update``."""
        cells = [cell for key, cell in self.results.cells.items() if key.split("/")[0] == arm]
        return [cell["milliseconds"][part] for cell in cells if cell["milliseconds"]]

    def per_step(self, arm: str) -> list[float]:
        """Processor milliseconds per step of every run: gradient and update."""
        parts = (self.milliseconds(arm, part) for part in ("gradient", "update"))
        return [math.fsum(pair) for pair in zip(*parts, strict=True)]


def loss_of(cell: dict[str, Any]) -> float:
    """The test loss of a run that is finite, nats."""
    return cell["test"]["loss"]


def accuracy_of(cell: dict[str, Any]) -> float:
    """The test accuracy of a run that is finite, in percent."""
    return 100 * cell["test"]["accuracy"]


def orbit(name: str) -> Callable[[dict[str, Any]], float | None]:
    """A number of `orbits.Wander.report`; None for models without a gauge."""
    return lambda cell: cell["orbit"][name] if cell["orbit"] else None
