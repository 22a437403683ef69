"""Statements of a spec beside its spaces and lines: parts that alignment leaves as they are, and what classes of
models return."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from isomerge.errors import IsomergeError

NOTHING = "nothing"
_RETURNS = re.compile(r"([\w\s]+?)\s*:\s*([\w*?\s]+)$")


@dataclass(frozen=True)
class FixedPart:
    """A part whose tensors no symmetry of a block moves; what they share with a residual stream follows the
    stream."""

    beginnings: tuple[str, ...]
    """What the names of its lines begin with."""
    reason: str

    def has(self, name: str) -> bool:
        """Whether the line of this name describes a tensor of this part."""
        return name.startswith(self.beginnings)


def read_fixed(rest: str) -> FixedPart:
    """Read what follows the word ``fixed``.

    Raises:
        IsomergeError: it has no name or no reason.
    """
    names, _, reason = rest.partition(": ")
    if not names.split() or not reason.strip():
        raise IsomergeError(f"fixed {rest!r} is not understood: write NAME ... : REASON")
    written = [name for name in names.split() if name != ":"]
    return FixedPart(tuple(alternative for name in written for alternative in alternatives(name)), reason.strip())


def alternatives(name: str) -> list[str]:
    """All names that one with alternatives ``(a|b)`` stands for, itself among them (lines may be written so)."""
    pieces = re.split(r"\(([^)]*)\)", name)
    choices = [piece.split("|") if at % 2 else [piece] for at, piece in enumerate(pieces)]
    return list(dict.fromkeys([name, *map("".join, product(*choices))]))


@dataclass(frozen=True)
class Returned:
    """One ``returns`` statement: what classes return, by the names of spaces and shifts."""

    names: frozenset[str]
    classes: tuple[str, ...]
    """Names of classes, in which ``*`` stands for anything."""


def read_returned(rest: str) -> Returned:
    """Read what follows the word ``returns``.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _RETURNS.match(rest)
    if not match:
        raise IsomergeError(
            f"returns {rest!r} is not understood: write `returns SPACE ... : CLASS ...`, or `returns nothing : "
            f"CLASS ...`"
        )
    return Returned(frozenset(match[1].split()) - {NOTHING}, tuple(match[2].split()))
