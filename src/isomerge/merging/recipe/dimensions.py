"""One number or word of a recipe that is searched for: where it stands, and which values it may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, log10, sqrt
from typing import Any

from isomerge.records import Json

Place = tuple[str | int, ...]
"""Keys and numbers of entries, from the top of a recipe to one of its values."""
DIGITS = 5
"""Digits that a number found has: a recipe is read by people, and no merge tells the sixth."""


def place_text(place: Place) -> str:
    """A place as messages name it, such as ``models.0.parameters.weight``."""
    return ".".join(map(str, place))


@dataclass(frozen=True)
class Dimension:
    """What is searched for at one place."""

    place: Place
    option: str
    """The method's parameter."""
    start: Any
    """The recipe's own value."""
    low: float = 0.0
    high: float = 1.0
    """Both included; of no meaning where there are choices."""
    choices: tuple[Any, ...] = ()
    whole: bool = False
    """Whether only whole numbers are taken."""
    log: bool = False
    """Whether orders of magnitude are searched evenly."""
    label: str = ""
    """Its name, where the place says little."""
    also: tuple[Place, ...] = ()
    """Further places that have the same value."""
    every: int = 0
    """So many consecutive layers have one value; 0: all have."""
    smooth: bool = False
    """Whether the values of groups of layers are interpolated."""

    @property
    def name(self) -> str:
        """The place without the keys that say nothing: ``models.0.weight``, ``lambda``, ``lambda.2`` of a
        gradient."""
        return self.label or place_text(tuple(part for part in self.place if part not in ("parameters", "value")))

    def __contains__(self, value: Any) -> bool:
        """Whether a value is one of those that are tried."""
        if self.choices:
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def rounded(self, value: Any) -> Any:
        """A value with the digits that count for its range, within it; choices and whole numbers as they are."""
        if self.choices or self.whole:
            return value
        scale = abs(value) if self.log else self.high - self.low
        digits = DIGITS - 1 - int(log10(scale) // 1) if scale and isfinite(scale) else DIGITS
        return min(max(round(float(value), digits), self.low), self.high)

    def document(self) -> Json:
        """As reports have it: plain values."""
        if self.choices:
            return {"name": self.name, "choices": list(self.choices), "start": self.start}
        plain = {"name": self.name, "search": [self.low, self.high], "start": self.start}
        return {**plain, "log": True} if self.log else plain


def middle(low: float, high: float, *, whole: bool, log: bool) -> float:
    """The value between two, in orders of magnitude where ``log`` says so."""
    between = sqrt(low) * sqrt(high) if log else low / 2 + high / 2
    return round(between) if whole else between


def with_values(content: Mapping[str, Any], values: Mapping[Place, Any]) -> Json:
    """A recipe with values at places; where one lies under ``parameters`` that are not there, they are made."""
    filled = deepcopy(dict(content))
    for place, value in values.items():
        at: Any = filled
        for part, following in pairwise(place):
            if isinstance(at, dict) and at.get(part) is None:
                at[part] = [] if isinstance(following, int) else {}
            at = at[part]
        last: Any = place[-1]
        if isinstance(at, list) and last == len(at):
            at.append(value)
        else:
            at[last] = value
    return filled


def value_at(content: Any, place: Place) -> Any:
    """What stands at a place; None where nothing does."""
    for part in place:
        if isinstance(content, Mapping):
            content = content.get(part)
        elif isinstance(content, Sequence) and not isinstance(content, str) and isinstance(part, int):
            content = content[part] if part < len(content) else None
        else:
            return None
    return content
