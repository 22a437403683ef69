"""What numbers say, in words: means with spreads, differences over pairs, and whether they count.

A difference counts when its 95 % interval (Student) over pairs (or seeds) leaves nought out. Three pairs of three
models share models, so that even this takes them for more than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import mean_spread


@dataclass(frozen=True)
class Difference:
    """Of two columns over the same pairs, the first less the second."""

    mean: float
    spread: float
    count: int

    @property
    def counts(self) -> bool:
        """Whether its 95 % interval (Student) leaves nought out; one pair decides nothing."""
        from scipy.stats import t

        if self.count < 2:
            return False
        return abs(self.mean) > float(t.ppf(0.975, self.count - 1)) * self.spread / self.count**0.5

    @property
    def word(self) -> str:
        """``higher``, ``lower``, or that nothing is decided."""
        if not self.counts:
            return "not decided"
        return "higher" if self.mean > 0 else "lower"

    def text(self, digits: int = 2, unit: str = "") -> str:
        """``+1.20 ± 0.30``, and a unit."""
        sign = (
            f"{self.mean:+.{digits}f} ± {self.spread:.{digits}f}" if self.count > 1 else f"{self.mean:+.{digits}f}"
        )
        return f"{sign}{unit}"


def difference(new: Sequence[float], old: Sequence[float]) -> Difference:
    """Of paired values.

    Raises:
        ValueError: other numbers of values, or none: these are no pairs.
    """
    if len(new) != len(old) or not new:
        raise ValueError(f"{len(new)} values against {len(old)}: only equal pairs can be compared")
    mean, spread = mean_spread(a - b for a, b in zip(new, old, strict=True))
    return Difference(mean, spread, len(new))


def best(columns: Mapping[str, Sequence[float]], *, low: bool = False) -> str:
    """The column with the best mean: the highest, or the lowest."""
    means = {name: mean_spread(values)[0] for name, values in columns.items() if values}
    return (min if low else max)(means, key=means.__getitem__)


def shown(values: Sequence[float], digits: int = 2) -> str:
    """``mean ± spread``; a dash for what was not measured."""
    if not values:
        return "–"
    mean, spread = mean_spread(values)
    return f"{mean:.{digits}f} ± {spread:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def spent(cells: Mapping[str, Any]) -> float:
    """The seconds that the cells of a results file say they took, wherever they say so."""
    total = 0.0
    for cell in cells.values():
        parts = cell if isinstance(cell, list) else [cell]
        for part in parts:
            took = part.get("seconds") if isinstance(part, dict) else None
            total += sum(took.values()) if isinstance(took, dict) else float(took or 0)  # by stage, or in all
    return total


def duration(seconds: float) -> str:
    """``40 s``, ``12 min`` or ``1.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
