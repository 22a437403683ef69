"""Tables of which the columns stand in any basis, as a text says it.

``basis NAME: TABLE along AXIS -> WEIGHT, ...``: what multiplies the rows of TABLE by WEIGHTs, of whatever layers, along
AXIS, is all that reads it: ``R A`` with ``W A^-T`` is the same for any invertible A.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.reaches import Part

_BASIS = re.compile(r"(\w+)\s*:\s*(\S+)\s+along\s+(\w+)\s*->\s*(\S.*)$")


@dataclass(frozen=True)
class TableBasis:
    """A table, the axis of its columns, and all that reads it."""

    name: str
    table: Part
    along: str
    readers: tuple[Part, ...]


def read_basis(rest: str, name_of: Callable[[str], str]) -> TableBasis:
    """Read what follows the word ``basis``.

    Args:
        rest: the statement.
        name_of: writes layers into a name.

    Raises:
        IsomergeError: it is not understood.
    """
    match = _BASIS.match(rest)
    if match is None:
        raise IsomergeError(f"basis {rest!r} is not understood: write NAME: TABLE along AXIS -> WEIGHT, ...")
    name, table, along, readers = match.groups()
    return TableBasis(
        name, Part(name_of(table)), along, tuple(Part(name_of(reader)) for reader in readers.split(", "))
    )
