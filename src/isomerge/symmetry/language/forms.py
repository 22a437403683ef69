"""How statements are written, what they ask of the text that is read, and what the names in them are of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Protocol, TypeVar

from isomerge.errors import IsomergeError

T = TypeVar("T")
LineName = Annotated[str, "line"]
"""What a string in a record of a spec is the name of says how it changes where another model has this one as a part
(`isomerge.symmetry.language.inclusion`). This one is of a line."""
OwnName = Annotated[str, "own"]
"""Of an axis, or of a statement."""
IndexName = Annotated[str, "index"]
"""Of an axis, or else of a number of layers, which the whole calls as it is."""
SpaceName = Annotated[str, "space"]
"""Of a space that the whole may leave out: what is said of it goes as well."""
KeyName = Annotated[str, "key"]
"""Of a key of ``config.json``."""
Reason = Annotated[str, "reason"]
"""A sentence, which tells what parts say apart."""
Alone = Annotated[T, "alone"]
"""What a model says of itself alone, whatever its parts say."""


class Reading(Protocol):
    """A text that is read: what statements ask of it."""

    def value(self, expression: str, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """What an expression comes to, with more names than the text knows."""
        ...

    def named(self, name: str) -> str:
        """The name of a line with its layers written into it."""
        ...

    def rows(self, first: str | None, last: str | None) -> tuple[int, int | None] | None:
        """The rows of an axis between two expressions, of which an empty one is the end; None where there is none."""
        ...


@dataclass(frozen=True)
class Form:
    """How a statement is written that begins with some word."""

    word: str
    pattern: re.Pattern[str]
    """Of what follows the word."""
    shown: str
    """The same, as errors show it."""

    def read(self, rest: str) -> re.Match[str]:
        """What follows the word, taken apart.

        Raises:
            IsomergeError: it is not understood.
        """
        match = self.pattern.match(rest)
        if match is None:
            raise self.refused(rest)
        return match

    def each(self, pattern: re.Pattern[str], texts: Sequence[str], rest: str) -> list[tuple[str | Any, ...]]:
        """Some texts out of what follows the word, each taken apart; raises as `read` does."""
        matches = [*map(pattern.match, texts)]
        if not all(matches):
            raise self.refused(rest)
        return [match.groups() for match in matches if match is not None]

    def refused(self, rest: str) -> IsomergeError:
        """The error of what is not understood."""
        return IsomergeError(f"{self.word} {rest!r} is not understood: write {self.shown}")
