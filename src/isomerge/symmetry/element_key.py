"""Keys of an alignment's elements, as they stand in files.

===================  =========================================================================================
``ov[3]``            the element of space ov in layer 3
``shift.vb[3]``      that of an additive gauge
``norm.ones.BLOCK``  that of a move of what LayerNorm leaves free (`isomerge.symmetry.norm_stage`)
``2:n1[0]``          one of the second stage; those of the first have no number
===================  =========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from isomerge.errors import IsomergeError, visible

SHIFT = "shift."


@dataclass(frozen=True)
class ElementKey:
    """An element's key, taken apart; ``str`` gives back what stands in files."""

    name: str
    """What it is an element of, or how it moves what: ``ov``, ``shift.vb``, ``norm.ones.BLOCK``."""
    numbers: str = ""
    """The layer as it is written: ``[3]``; of a file that was edited, anything."""
    stage: str = ""
    """The number of its stage; none in the first."""

    @staticmethod
    def of(key: str) -> ElementKey:
        """The key that a text is; every text is one."""
        return _parsed(key)

    @staticmethod
    def at(name: str, numbers: Iterable[int]) -> str:
        """The text of the key of an element in the layer with these numbers; of none: of all layers."""
        inner = ",".join(map(str, numbers))
        return f"{name}[{inner}]" if inner else name

    def __str__(self) -> str:
        return f"{self.stage}:{self.in_stage}" if self.stage else self.in_stage

    @property
    def in_stage(self) -> str:
        """The text of the key without the number of its stage."""
        return self.name + self.numbers

    @property
    def is_shift(self) -> bool:
        """Whether it is of an additive gauge of the text, called by its name behind ``shift.``."""
        return self.name.startswith(SHIFT)

    def scope(self, indices: Sequence[str]) -> dict[str, int]:
        """The layer that it names, by the indices that number it.

        Raises:
            IsomergeError: it names none, as in a file that was edited.
        """
        parts = [part for part in self.numbers[1:].removesuffix("]").split(",") if part]
        if len(parts) != len(indices) or not all(
            part.isascii() and part.isdigit() and len(part) < 10 for part in parts
        ):
            raise IsomergeError(
                f"an alignment moves {visible(str(self))}, which names no layer of this architecture: its file was "
                f"changed; make it again"
            )
        return dict(zip(indices, map(int, parts), strict=True))


@lru_cache(maxsize=1 << 14)
def _parsed(key: str) -> ElementKey:
    stage, _, rest = key.rpartition(":")
    name, bracket, numbers = rest.partition("[")
    return ElementKey(name, bracket + numbers, stage)
