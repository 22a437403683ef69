"""What the barrier benchmarks aimed at, what was measured, and by how much that falls short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

DATA_FREE = {
    "all": "by weights",
    "generated": "no data, activations",
    "generated-distilled": "no data, learned",
}
LEARNED = ("thorough", "distilled", "learned", "distilled-quick", "learned-quick")
HEAD = [
    "## What was aimed at",
    "",
    "By means over the pairs; in brackets the mean, and the worst pair where there are several.",
    "",
    "| aim | met | missed |",
    "|---|---|---|",
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
        strict: whether ``most`` itself misses the aim.
    """

    what: str
    most: float
    unit: str
    measured: Sequence[float]
    mean: float
    strict: bool = False

    @property
    def met(self) -> bool:
        """Whether the mean meets it."""
        return self.mean < self.most or (self.mean == self.most and not self.strict)

    def told(self, models: str) -> str:
        """The models with their mean, and the worst pair, which the mean does not hide."""
        worst = f", worst {max(self.measured):.3g}" if len(self.measured) > 1 else ""
        return f"{models} ({self.mean:.3g}{self.unit}{worst})"


def section(families: Sequence[dict[str, Any]], named: Callable[[str], str]) -> list[str]:
    """Every aim with the families that meet it and those that do not.

    Args:
        families: their results.
        named: what a family is called.
    """
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for found in families:
        for aim in aims(found):
            rows.setdefault(aim.what, ([], []))[not aim.met].append(aim.told(named(found["family"])))
    return [*HEAD, *(f"| {what} | {_list(met)} | {_list(missed)} |" for what, (met, missed) in rows.items()), ""]


def _list(told: Sequence[str]) -> str:
    return "; ".join(told) or "–"


def aims(found: dict[str, Any]) -> list[Aim]:
    """The aims of one family."""
    free = [
        _share(found, row, f"{how}: at most 20 % of the barrier as stored", 20)
        for row, how in DATA_FREE.items()
        if row in found["summary"]
    ]
    best = best_learned(found)
    if best is None:
        return free
    if found["family"].startswith("vit"):
        return [*free, *_of_images(found, best)]
    return [*free, _share(found, best, "learned: at most 5 % of the barrier as stored", 5)]


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


def _of_images(found: dict[str, Any], row: str) -> list[Aim]:
    """What classifiers were to reach: no barrier, and a midpoint as good as the models, then better than both."""
    barrier, lost, behind, excess = [], [], [], []
    for entry in _pairs(found, row):
        ends, middle = entry["pair"]["ends"], entry["rows"][row]["midpoint"]
        barrier.append(entry["rows"][row]["barrier"]["entezari"])
        lost.append(100 * (fmean(end["accuracy"] for end in ends) - middle["accuracy"]))
        behind.append(100 * (max(end["accuracy"] for end in ends) - middle["accuracy"]))
        excess.append(middle["loss"] - min(end["loss"] for end in ends))
    below, above = (
        "learned: midpoint's accuracy at most 0.3 points below the ends'",
        "learned: midpoint more accurate",
    )
    return [
        Aim("learned: a barrier of at most 0.02 nats", 0.02, " nats", barrier, fmean(barrier)),
        Aim(below, 0.3, " points below", lost, fmean(lost)),
        Aim(f"{above} than both ends", 0, " points below the better", behind, fmean(behind), strict=True),
        Aim("learned: midpoint's loss below both ends'", 0, " nats above", excess, fmean(excess), strict=True),
    ]
