"""Readers that see no more of a stream than a constant, or than what a narrower map reaches, as a text says it.

``probe NAME: PROBE through WEIGHT#PART by BIAS#PART -> KEY#PART by BIAS#PART along AXIS``: one constant is read by WEIGHT
and its bias, which makes one vector of each head along AXIS, and no more of KEY counts than what that makes of it. The
keys' bias softmax drops: a `shift` says so.

``reached NAME: BIAS over MAP [behind GAIN] [then NORM] -> WEIGHT by BIAS, ...``: these weights read ``MAP e + BIAS`` alone,
of fewer e than it is wide; e comes from the norm of GAIN. With ``then``: once, and the norm of NORM in every later run.

``unheard NAME: WEIGHT#PART by BIAS#PART [behind GAIN] through OUT``: values, whose constants of which OUT, that has no
bias, makes something along the ones alone no norm hears; WEIGHT reads the norm of GAIN. The last of its axes is that of
a head's values. Without GAIN the order of lines says which norm it is, under `postnorm`; where a stream carries that
norm's bias on to what OUT writes, the values take it up.

``length NAME: WEIGHT by LENGTHS along AXIS``: of WEIGHT's slices along AXIS the directions alone count; LENGTHS has their
lengths. ``length NAME: WEIGHT above LEAST``: what WEIGHT writes is scaled to some length afterwards, wherever its mean
square is above a bound that nothing comes near while WEIGHT multiplies mean squares by more than LEAST.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.carries import numbered

_PART = r"(\S+?)(?:#(\d+))?"
_MAP = rf"{_PART}\s+by\s+{_PART}"
_PROBE = re.compile(rf"(\w+)\s*:\s*(\S+)\s+through\s+{_MAP}\s*->\s*{_MAP}\s+along\s+(\w+)$")
_REACHED = re.compile(r"(\w+)\s*:\s*(\S+)\s+over\s+(\S+)(?:\s+behind\s+(\S+))?(?:\s+then\s+(\S+))?\s*->\s*(.+)$")
_UNHEARD = re.compile(rf"(\w+)\s*:\s*{_MAP}(?:\s+behind\s+(\S+))?\s+through\s+(\S+)$")
_LENGTH = re.compile(r"(\w+)\s*:\s*(\S+)\s+(?:by\s+(\S+)\s+along\s+(\w+)|above\s+([\d.]+(?:e-?\d+)?))$")
_READER = re.compile(rf"{_MAP}$")


@dataclass(frozen=True)
class Part:
    """A line, or a part of a concatenation in it."""

    name: str
    number: int = 0

    @property
    def shown(self) -> str:
        """What errors call it."""
        return f"{self.name}#{self.number}" if self.number else self.name

    def is_of(self, name: str) -> bool:
        """Whether a canonical name is this line's."""
        return self.layer(name) is not None

    def layer(self, name: str) -> dict[str, int] | None:
        """The numbers of a canonical name, where it is this line's."""
        return numbered(self.name, name)


@dataclass(frozen=True)
class Map:
    """A weight and its bias."""

    weight: Part
    bias: Part

    @property
    def parts(self) -> tuple[Part, Part]:
        """Both."""
        return self.weight, self.bias


@dataclass(frozen=True)
class Probe:
    """A constant that asks, and the keys that it asks."""

    name: str
    token: Part
    query: Map
    key: Map
    along: str
    """The axis over which queries and keys are multiplied."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All lines."""
        return self.token, *self.query.parts, *self.key.parts


@dataclass(frozen=True)
class Reach:
    """What a map reaches of a stream, and who reads nothing else."""

    name: str
    bias: Part
    through: Part
    gain: Part | None
    readers: tuple[Map, ...]
    then: Part | None = None
    """The gain of the norm that readers read in every run but the first."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All lines."""
        gains = [part for part in (self.gain, self.then) if part is not None]
        return self.bias, self.through, *gains, *(part for reader in self.readers for part in reader.parts)


@dataclass(frozen=True)
class Mute:
    """Values, and the output that they go through, of which constants may be unheard."""

    name: str
    values: Map
    gain: Part | None
    """None: the norm that the values read by the order of lines."""
    out: Part


@dataclass(frozen=True)
class Length:
    """A weight of which the directions of slices count, and what has their lengths; or one of which the direction of
    the whole counts, as what it writes is scaled afterwards."""

    name: str
    weight: Part
    stored: Part | None = None
    along: str | None = None
    """The axis that numbers the slices."""
    least: float = 0.0
    """By what mean squares of what the weight reads must be multiplied that its length is free."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All lines."""
        return (self.weight,) if self.stored is None else (self.weight, self.stored)


def read_length(rest: str, name_of: Callable[[str], str]) -> Length:
    """Read what follows the word ``length``.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _LENGTH.match(rest)
    if match is None:
        raise IsomergeError(
            f"length {rest!r} is not understood: write NAME: WEIGHT by LENGTHS along AXIS, or NAME: WEIGHT above LEAST"
        )
    weight = Part(name_of(match[2]))
    if match[5] is not None:
        return Length(match[1], weight, least=float(match[5]))
    return Length(match[1], weight, Part(name_of(match[3])), match[4])


def read_probe(rest: str, name_of: Callable[[str], str]) -> Probe:
    """Read what follows the word ``probe``.

    Args:
        rest: the statement.
        name_of: writes layers into a name.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _PROBE.match(rest)
    if match is None:
        raise IsomergeError(
            f"probe {rest!r} is not understood: write NAME: PROBE through WEIGHT#PART by BIAS#PART -> KEY#PART by "
            f"BIAS#PART along AXIS"
        )
    name, token, *pieces, along = match.groups()
    return Probe(name, Part(name_of(token)), _map(pieces[:4], name_of), _map(pieces[4:], name_of), along)


def read_reached(rest: str, name_of: Callable[[str], str]) -> Reach:
    """Read what follows the word ``reached``.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _REACHED.match(rest)
    readers = [] if match is None else [_READER.match(part) for part in match[6].split(", ")]
    if match is None or not all(readers):
        raise IsomergeError(
            f"reached {rest!r} is not understood: write NAME: BIAS over MAP [behind GAIN] [then NORM] -> WEIGHT by "
            f"BIAS, ..."
        )
    bias, through = (Part(name_of(match[k])) for k in (2, 3))
    gain, then = (None if match[k] is None else Part(name_of(match[k])) for k in (4, 5))
    maps = tuple(_map(list(part.groups()), name_of) for part in readers if part is not None)
    return Reach(match[1], bias, through, gain, maps, then)


def read_unheard(rest: str, name_of: Callable[[str], str]) -> Mute:
    """Read what follows the word ``unheard``.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _UNHEARD.match(rest)
    if match is None:
        raise IsomergeError(
            f"unheard {rest!r} is not understood: write NAME: WEIGHT by BIAS [behind GAIN] through OUT"
        )
    name, *pieces, gain, out = match.groups()
    norm = None if gain is None else Part(name_of(gain))
    return Mute(name, _map(pieces, name_of), norm, Part(name_of(out)))


def _map(pieces: list[str], name_of: Callable[[str], str]) -> Map:
    weight, number, bias, other = pieces
    return Map(Part(name_of(weight), int(number or 0)), Part(name_of(bias), int(other or 0)))
