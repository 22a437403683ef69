"""What the barrier benchmarks aimed at, what was measured, and by how much that falls short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

DATA_FREE = {
    "all": "data-free",
    "generated": "data-free, activations on generated examples",
    "generated-distilled": "data-free, learned from generated examples",
}
LEARNED = ("thorough", "distilled", "learned", "distilled-quick", "learned-quick")
HEAD = [
    "## What was aimed at",
    "",
    "*Short by* is the mean over the pairs less the aim, a dash where the mean meets it. *Worst pair* is the "
    "largest figure of a "
    "single pair: where it is above the aim, that pair misses it, whatever the mean. Accuracy and loss of the "
    "midpoint stand side by "
    "side: the one may meet what the other misses.",
    "",
    "| models | aim | pairs | mean | worst pair | short by |",
    "|---|---|---|---|---|---|",
]


@dataclass(frozen=True)
class Aim:
    """One aim and what was measured.

    Args:
        what: the aim in words.
        most: the largest figure that meets it.
        unit: of the figures, with a space in front.
        measured: the figure of every pair.
        mean: over the pairs; of shares the ratio of means, in which a pair counts by its unmatched barrier.
        side: what a figure is counted from, behind the unit.
        strict: whether ``most`` itself misses the aim.
    """

    what: str
    most: float
    unit: str
    measured: Sequence[float]
    mean: float
    side: str = ""
    strict: bool = False

    def row(self, models: str) -> str:
        """The line of the table."""
        mean, worst = (f"{figure:.3g}{self.unit}{self.side}" for figure in (self.mean, max(self.measured)))
        over = self.mean - self.most
        met = over < 0 or (over == 0 and not self.strict)
        short = "–" if met else f"{over:.3g}{self.unit}" if over else "equal"
        return f"| {models} | {self.what} | {len(self.measured)} | {mean} | {worst} | {short} |"


def reach(found: dict[str, Any], named: Callable[[dict[str, Any], str], str]) -> list[str]:
    """The rows of one family.

    Args:
        found: its results.
        named: what a row of them is called.
    """
    aims = [
        _share(found, row, f"{how}: barrier at most 20 % of the unmatched", 20)
        for row, how in DATA_FREE.items()
        if row in found["summary"]
    ]
    best = best_learned(found)
    if best is not None and found["family"].startswith("vit"):
        aims += _of_images(found, best, named(found, best))
    elif best is not None:
        aims.append(_share(found, best, f"{named(found, best)}: barrier at most 5 % of the unmatched", 5))
    return [aim.row(found["family"]) for aim in aims]


def best_learned(found: dict[str, Any]) -> str | None:
    """The learned row of the lowest barrier among those measured on most pairs."""
    rows = {row: found["summary"][row] for row in LEARNED if row in found["summary"]}
    most = max((s["pairs"] for s in rows.values()), default=0)
    return min(
        (row for row, s in rows.items() if s["pairs"] == most), key=lambda r: rows[r]["barrier"], default=None
    )


def _pairs(found: dict[str, Any], row: str) -> list[dict[str, Any]]:
    """The pairs that have a row."""
    return [entry for entry in found["pairs"].values() if row in entry.get("rows", {})]


def _share(found: dict[str, Any], row: str, what: str, most: float) -> Aim:
    """A barrier in percent of the same pairs' unmatched one."""
    here = [entry["rows"] for entry in _pairs(found, row)]
    barriers, unmatched = ([rows[name]["barrier"]["entezari"] for rows in here] for name in (row, "stored"))
    shares = [100 * b / u for b, u in zip(barriers, unmatched, strict=True)]
    return Aim(what, most, " %", shares, 100 * sum(barriers) / sum(unmatched))


def _of_images(found: dict[str, Any], row: str, label: str) -> list[Aim]:
    """What classifiers were to reach: no barrier, and a midpoint as good as the models, then better than both."""
    barrier, lost, behind, excess = [], [], [], []
    for entry in _pairs(found, row):
        ends, middle = entry["pair"]["ends"], entry["rows"][row]["midpoint"]
        barrier.append(entry["rows"][row]["barrier"]["entezari"])
        lost.append(100 * (fmean(end["accuracy"] for end in ends) - middle["accuracy"]))
        behind.append(100 * (max(end["accuracy"] for end in ends) - middle["accuracy"]))
        excess.append(middle["loss"] - min(end["loss"] for end in ends))
    return [
        Aim(f"{label}: barrier at most 0.02 nats", 0.02, " nats", barrier, fmean(barrier)),
        Aim(
            f"{label}: midpoint's accuracy at most 0.3 points below the endpoints' mean",
            0.3,
            " points",
            lost,
            fmean(lost),
        ),
        Aim(
            f"{label}: midpoint's accuracy above both endpoints'",
            0,
            " points",
            behind,
            fmean(behind),
            " below the better",
            strict=True,
        ),
        Aim(
            f"{label}: midpoint's loss below both endpoints'",
            0,
            " nats",
            excess,
            fmean(excess),
            " above the better",
            strict=True,
        ),
    ]
