"""Norms over the coordinates of a head, as a text says what they take away.

``centred NAME: LINE[#PART,PART], ... over AXIS ...``: a LayerNorm takes the mean over these axes, of all parts together,
of what each LINE writes: what it writes along the ones of them is free.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.carries import numbered

_CENTRED = re.compile(r"(\w+)\s*:\s*(\S.*?)\s+over\s+(\w[\w\s]*)$")
_LINE = re.compile(r"(\S+?)(?:#(\d+(?:,\d+)*))?$")


@dataclass(frozen=True)
class Normed:
    """A line, and the parts of it that are normed together."""

    name: str
    parts: tuple[int, ...] = (0,)

    def layer(self, name: str) -> dict[str, int] | None:
        """The numbers of a canonical name, where it is this line's."""
        return numbered(self.name, name)


@dataclass(frozen=True)
class HeadNorm:
    """A LayerNorm over some axes, and what it reads."""

    name: str
    lines: tuple[Normed, ...]
    over: frozenset[str]


def read_centred(rest: str, name_of: Callable[[str], str]) -> HeadNorm:
    """Read what follows the word ``centred``.

    Args:
        rest: the statement.
        name_of: writes layers into a name.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _CENTRED.match(rest)
    lines = [] if match is None else [_LINE.match(line) for line in match[2].split(", ")]
    if match is None or not all(lines):
        raise IsomergeError(f"centred {rest!r} is not understood: write NAME: LINE#PART,PART, ... over AXIS ...")
    parts = [(name_of(line[1]), tuple(map(int, (line[2] or "0").split(",")))) for line in lines if line is not None]
    return HeadNorm(match[1], tuple(Normed(*part) for part in parts), frozenset(match[3].split()))
