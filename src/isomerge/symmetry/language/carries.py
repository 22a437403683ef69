"""Constants that may stand in one tensor or in several others, of whatever layers, as a text says it.

``carry NAME: FIRST [along AXIS] -> OTHER, OTHER ...``: a vector v that FIRST has more (all rows of it along AXIS, one
of them the same) every OTHER has less. An OTHER is ``[FACTOR] LINE[#PART] [along AXIS[a:b]] [over AXIS[a:b]] [at LAYERS]
[via WEIGHT[#PART]]``: it loses v, so many times v, or what WEIGHT makes of v; over some coordinates of a longer axis; at
LAYERS, an axis, where FIRST's layer stands in it. In names ``{l:E}`` are some layers and ``{l}`` all; where FIRST has a ``{l}``
there is a vector for each layer, and an OTHER with a ``{l}`` is of the same one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.names import expression

Rows = tuple[int, int | None]
"""Rows of an axis from one up to another, or to the last."""
_CARRY = re.compile(r"(\w+)\s*:\s*(.+?)\s*->\s*(.+)$")
_HOLDER = re.compile(
    r"(?:(-?\d+(?:\.\d+)?)\s+)?(\S+?)(?:#(\d+))?(?:\s+along\s+(\w+)(?:\[(\S*?):(\S*?)\])?)?(?:\s+over\s+(\w+)\[(\S*?):(\S*?)\])?(?:\s+at\s+(\w+))?(?:\s+via\s+(\S+?)(?:#(\d+))?)?$"
)


@dataclass(frozen=True)
class Holder:
    """A tensor that may hold the vector, or what a weight makes of it."""

    name: str
    """Of its line; layers are written into it."""
    along: str | None = None
    rows: Rows | None = None
    """The rows of that axis that hold it; None: all."""
    via: str | None = None
    via_part: int | None = None
    """The part of a concatenation that reads it."""
    factor: float = 1.0
    part: int | None = None
    """The part of a concatenation that holds it; None: all."""
    over: str | None = None
    """The axis of which some coordinates hold it, where it is longer than the vector."""
    coordinates: Rows | None = None
    """Which of them."""
    at: str | None = None
    """The axis of layers of which one holds it."""
    row: int | None = None
    """Which of them, where that is known."""

    def layer(self, name: str) -> dict[str, int] | None:
        """The numbers of a canonical name, where it is this one's."""
        return numbered(self.name, name)

    def via_layer(self, name: str) -> dict[str, int] | None:
        """The same of the weight's."""
        return None if self.via is None else numbered(self.via, name)


@dataclass(frozen=True)
class Carry:
    """A vector that may stand in the first tensor or in all others."""

    name: str
    first: Holder
    others: tuple[Holder, ...]


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(expression(pattern))


def numbered(pattern: str, name: str) -> dict[str, int] | None:
    """The numbers that a name has where a pattern has indices; None where it is none of the pattern's."""
    match = _compiled(pattern).fullmatch(name)
    return None if match is None else {k: int(v) for k, v in match.groupdict().items()}


def read_carry(
    rest: str, name_of: Callable[[str], str], rows_of: Callable[[str | None, str | None], Rows | None]
) -> Carry:
    """Read what follows the word ``carry``.

    Args:
        rest: the statement.
        name_of: writes layers into a name.
        rows_of: what two expressions come to as rows.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _CARRY.match(rest)
    parts = [] if match is None else [_HOLDER.match(part) for part in (match[2], *match[3].split(", "))]
    if match is None or not all(parts):
        raise IsomergeError(
            f"carry {rest!r} is not understood: write NAME: LINE [along AXIS] -> [FACTOR] LINE [along AXIS] "
            f"[over AXIS[a:b]] [at LAYERS] [via WEIGHT], ..."
        )
    holders = []
    for part in filter(None, parts):
        factor, line, own, along, first, last, over, low, high, layers, via, number = part.groups()
        at, reading = (int(text) if text else None for text in (own, number))
        more = (via and name_of(via), reading, float(factor or 1), at, over, rows_of(low, high), layers)
        holders.append(Holder(name_of(line), along, rows_of(first, last), *more))
    return Carry(match[1], holders[0], tuple(holders[1:]))
