"""Statements of a spec beside its spaces and lines: what they are called, what they hold, and how they are read.

Of all classes and parts: ``fixed`` and ``returns`` (`isomerge.symmetry.fixed`, `isomerge.symmetry.returned`).

Of constants that several tensors hold, of whatever layers:

``carry NAME: FIRST [along AXIS] -> OTHER, OTHER ...``: a vector v that FIRST has more (all rows of it along AXIS, one
of them the same) every OTHER has less. An OTHER is ``[FACTOR] LINE[#PART] [along AXIS[a:b]] [over AXIS[a:b]] [at LAYERS]
[via WEIGHT[#PART]]``: it loses v, so many times v, or what WEIGHT makes of v; over some coordinates of a longer axis; at
LAYERS, an axis, where FIRST's layer stands in it. In names ``{l:E}`` are some layers and ``{l}`` all; where FIRST has a ``{l}``
there is a vector for each layer, and an OTHER with a ``{l}`` is of the same one.

Of few tensors (`isomerge.symmetry.stated`):

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

``basis NAME: TABLE along AXIS -> WEIGHT, ...``: what multiplies the rows of TABLE by WEIGHTs, of whatever layers, along
AXIS, is all that reads it: ``R A`` with ``W A^-T`` is the same for any invertible A.

``centred NAME: LINE[#PART,PART], ... over AXIS ...``: a LayerNorm takes the mean over these axes, of all parts together,
of what each LINE writes: what it writes along the ones of them is free.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from isomerge.symmetry.language.names import Groups, LineName, OwnName, Reading, expression

NOTHING = "nothing"
Rows = tuple[int, int | None]
"""Rows of an axis from one up to another, or to the last."""

PART = r"(\S+?)(?:#(\d+))?"
MAP = rf"{PART}\s+by\s+{PART}"
"""A line or a part of it, and a weight's with its bias's, in the patterns of words."""
_READER = re.compile(rf"{MAP}$")
_NORMED = re.compile(r"(\S+?)(?:#(\d+(?:,\d+)*))?$")
_HOLDER = re.compile(
    r"(?:(-?\d+(?:\.\d+)?)\s+)?(\S+?)(?:#(\d+))?(?:\s+along\s+(\w+)(?:\[(\S*?):(\S*?)\])?)?(?:\s+over\s+(\w+)\[(\S*?):(\S*?)\])?(?:\s+at\s+(\w+))?(?:\s+via\s+(\S+?)(?:#(\d+))?)?$"
)


@dataclass(frozen=True)
class FixedPart:
    """A part whose tensors no symmetry of a block moves; what they share with a residual stream follows the
    stream."""

    beginnings: tuple[LineName, ...]
    """What the names of its lines begin with."""
    reason: str

    def has(self, name: str) -> bool:
        """Whether the line of this name describes a tensor of this part."""
        return name.startswith(self.beginnings)


@dataclass(frozen=True)
class Returned:
    """One ``returns`` statement: what classes return, by the names of spaces and shifts."""

    names: frozenset[str]
    classes: tuple[str, ...]
    """Names of classes, in which ``*`` stands for anything."""


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(expression(pattern))


def numbered(pattern: str, name: str) -> dict[str, int] | None:
    """The numbers that a name has where a pattern has indices; None where it is none of the pattern's."""
    match = _compiled(pattern).fullmatch(name)
    return None if match is None else {k: int(v) for k, v in match.groupdict().items()}


class NamedLine:
    """What a statement says of one line, by its name; layers are written into it."""

    name: LineName

    def layer(self, name: str) -> dict[str, int] | None:
        """The numbers of a canonical name, where it is this line's."""
        return numbered(self.name, name)

    def is_of(self, name: str) -> bool:
        """Whether a canonical name is this line's."""
        return self.layer(name) is not None


@dataclass(frozen=True)
class Holder(NamedLine):
    """A tensor that may hold a vector that is carried, or what a weight makes of it."""

    name: LineName
    along: OwnName | None = None
    rows: Rows | None = None
    """The rows of that axis that hold it; None: all."""
    via: LineName | None = None
    via_part: int | None = None
    """The part of a concatenation that reads it."""
    factor: float = 1.0
    part: int | None = None
    """The part of a concatenation that holds it; None: all."""
    over: OwnName | None = None
    """The axis of which some coordinates hold it, where it is longer than the vector."""
    coordinates: Rows | None = None
    """Which of them."""
    at: OwnName | None = None
    """The axis of layers of which one holds it."""
    row: int | None = None
    """Which of them, where that is known."""

    def via_layer(self, name: str) -> dict[str, int] | None:
        """The same of the weight's."""
        return None if self.via is None else numbered(self.via, name)


@dataclass(frozen=True)
class Carry:
    """A vector that may stand in the first tensor or in all others."""

    name: OwnName
    first: Holder
    others: tuple[Holder, ...]


@dataclass(frozen=True)
class Part(NamedLine):
    """A line, or a part of a concatenation in it."""

    name: LineName
    number: int = 0

    @property
    def shown(self) -> str:
        """What errors call it."""
        return f"{self.name}#{self.number}" if self.number else self.name


@dataclass(frozen=True)
class Normed(NamedLine):
    """A line, and the parts of it that are normed together."""

    name: LineName
    parts: tuple[int, ...] = (0,)


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

    name: OwnName
    token: Part
    query: Map
    key: Map
    along: OwnName
    """The axis over which queries and keys are multiplied."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All lines."""
        return self.token, *self.query.parts, *self.key.parts


@dataclass(frozen=True)
class Reach:
    """What a map reaches of a stream, and who reads nothing else."""

    name: OwnName
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

    name: OwnName
    values: Map
    gain: Part | None
    """None: the norm that the values read by the order of lines."""
    out: Part


@dataclass(frozen=True)
class Length:
    """A weight of which the directions of slices count, and what has their lengths; or one of which the direction of
    the whole counts, as what it writes is scaled afterwards."""

    name: OwnName
    weight: Part
    stored: Part | None = None
    along: OwnName | None = None
    """The axis that numbers the slices."""
    least: float = 0.0
    """By what mean squares of what the weight reads must be multiplied that its length is free."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All lines."""
        return (self.weight,) if self.stored is None else (self.weight, self.stored)


@dataclass(frozen=True)
class TableBasis:
    """A table, the axis of its columns, and all that reads it."""

    name: OwnName
    table: Part
    along: OwnName
    readers: tuple[Part, ...]


@dataclass(frozen=True)
class HeadNorm:
    """A LayerNorm over some axes, and what it reads."""

    name: OwnName
    lines: tuple[Normed, ...]
    over: frozenset[OwnName]


# Each of these gives what a word's pattern took apart its meaning; None, where some of it is not understood.


def read_fixed(groups: Groups, text: Reading) -> FixedPart | None:
    """Of the word ``fixed``."""
    names, _, reason = text.named(groups[0]).partition(": ")
    if not names.split() or not reason.strip():
        return None
    written = [name for name in names.split() if name != ":"]
    return FixedPart(tuple(alternative for name in written for alternative in alternatives(name)), reason.strip())


def alternatives(name: str) -> list[str]:
    """All names that one with alternatives ``(a|b)`` stands for, itself among them (lines may be written so)."""
    pieces = re.split(r"\(([^)]*)\)", name)
    choices = [piece.split("|") if at % 2 else [piece] for at, piece in enumerate(pieces)]
    return list(dict.fromkeys([name, *map("".join, product(*choices))]))


def read_returned(groups: Groups, text: Reading) -> Returned:
    """Of the word ``returns``."""
    return Returned(frozenset(groups[0].split()) - {NOTHING}, tuple(groups[1].split()))


def read_biased(groups: Groups, text: Reading) -> list[tuple[str, int | None, str]]:
    """Of the word ``biased``: a statement for each bias."""
    weight, number, biases = groups
    return [(weight, None if number is None else int(number), name) for name in biases.split()]


def read_carry(groups: Groups, text: Reading) -> Carry | None:
    """Of the word ``carry``."""
    name, first, others = groups
    if (parts := _each(_HOLDER, [first, *others.split(", ")])) is None:
        return None
    holders = []
    for factor, line, own, along, begin, end, over, low, high, layers, via, number in parts:
        at, reading = (int(digits) if digits else None for digits in (own, number))
        more = (via and text.named(via), reading, float(factor or 1), at, over, text.rows(low, high), layers)
        holders.append(Holder(text.named(line), along, text.rows(begin, end), *more))
    return Carry(name, holders[0], tuple(holders[1:]))


def read_probe(groups: Groups, text: Reading) -> Probe:
    """Of the word ``probe``."""
    name, token, *pieces, along = groups
    return Probe(name, Part(text.named(token)), _map(pieces[:4], text), _map(pieces[4:], text), along)


def read_reached(groups: Groups, text: Reading) -> Reach | None:
    """Of the word ``reached``."""
    name, bias, through, gain, then, readers = groups
    if (parts := _each(_READER, readers.split(", "))) is None:
        return None
    gain, then = (None if line is None else Part(text.named(line)) for line in (gain, then))
    maps = tuple(_map(part, text) for part in parts)
    return Reach(name, Part(text.named(bias)), Part(text.named(through)), gain, maps, then)


def read_unheard(groups: Groups, text: Reading) -> Mute:
    """Of the word ``unheard``."""
    name, *pieces, gain, out = groups
    return Mute(name, _map(pieces, text), None if gain is None else Part(text.named(gain)), Part(text.named(out)))


def read_length(groups: Groups, text: Reading) -> Length:
    """Of the word ``length``."""
    name, weight, stored, along, least = groups
    if least is not None:
        return Length(name, Part(text.named(weight)), least=float(least))
    return Length(name, Part(text.named(weight)), Part(text.named(stored)), along)


def read_basis(groups: Groups, text: Reading) -> TableBasis:
    """Of the word ``basis``."""
    name, table, along, readers = groups
    return TableBasis(name, Part(text.named(table)), along, tuple(Part(text.named(r)) for r in readers.split(", ")))


def read_centred(groups: Groups, text: Reading) -> HeadNorm | None:
    """Of the word ``centred``."""
    name, listed, over = groups
    if (lines := _each(_NORMED, listed.split(", "))) is None:
        return None
    normed = tuple(Normed(text.named(line), tuple(map(int, (parts or "0").split(",")))) for line, parts in lines)
    return HeadNorm(name, normed, frozenset(over.split()))


def _each(pattern: re.Pattern[str], texts: Sequence[str]) -> list[Groups] | None:
    """Some texts, each taken apart; None where one of them is not understood."""
    matches = [match for text in texts if (match := pattern.match(text))]
    return [match.groups() for match in matches] if len(matches) == len(texts) else None


def _map(pieces: Sequence[Any], text: Reading) -> Map:
    weight, number, bias, other = pieces
    return Map(Part(text.named(weight), int(number or 0)), Part(text.named(bias), int(other or 0)))
