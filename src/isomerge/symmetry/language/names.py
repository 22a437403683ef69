"""Numbers in the names of lines: how a text writes them, how a bound line keeps them, and what they stand for.

=================  ============================================  =========================
in a text          a bound line's name                           what it is
=================  ============================================  =========================
``{l}``            ``{l}``                                       any number
``{a,b}``          ``{a*4+b}``                                   one that factors: 4 values of ``b`` (fast) in every ``a``
``{l:E}``          ``{l=0|3}``                                   0 or 3 alone
``{l!E}``          ``{l!0|3}``                                   any but these
``{l:A..B}``       ``{l=2|3|4}``                                 from A up to but without B
``{l:E,r}``        ``{l=3,r=5|7}``                               5 or 7: the axis ``r`` of layer 3, where r is a list of layers
=================  ============================================  =========================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Protocol, TypeVar

from isomerge.errors import IsomergeError

_NUMBER = re.compile(r"\{(\w+)(?:\*(\d+)\+(\w+))?(?:([=!])([\d|]*))?(?:,(\w+)=([\d|]*))?\}")
MOST_LAYERS = 10_000
"""What a model or a range of layers in a name may have: they are written out, and configs are not to be trusted."""
Evaluate = Callable[[str], Any]
"""What an expression of a text comes to."""
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


Groups = tuple[Any, ...]
"""What follows a word, taken apart by its pattern: texts, and None for what is left out."""


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
class Number:
    """One number of a name."""

    index: str
    size: int = 0
    fast: str = ""
    """The fast index of a number that factors, of this size."""
    sign: str = ""
    values: tuple[int, ...] = ()
    """The numbers that it is (``=``) or is not (``!``)."""
    axis: str = ""
    listed: tuple[int, ...] = ()
    """The axis along which the listed layers stand; the index is then the one value, whatever the number."""

    @property
    def indices(self) -> tuple[str, ...]:
        """What is bound by the number, in order."""
        return tuple(filter(None, (self.index, self.fast, self.axis)))

    def expression(self) -> str:
        """The regular expression of the number, a group called by the index."""
        if self.axis or self.sign == "=":
            return f"(?P<{self.index}>{_joined(self.listed if self.axis else self.values) or '(?!)'})"
        other = f"(?!(?:{_joined(self.values)})(?!\\d))" if self.values else ""
        return f"(?P<{self.index}>{other}(?:0|[1-9]\\d*))"

    def binding(self, number: int) -> dict[str, int]:
        """The values of the indices when this number stands in a name."""
        if self.axis:
            return {self.index: self.values[0], self.axis: self.listed.index(number)}
        if self.fast:
            return dict(zip((self.index, self.fast), divmod(number, self.size), strict=True))
        return {self.index: number}

    def value(self, binding: Mapping[str, int]) -> int:
        """The number that stands in a name, from the values of the indices."""
        if self.axis:
            return self.listed[binding[self.axis]]
        return binding[self.index] * self.size + binding[self.fast] if self.fast else binding[self.index]


def _joined(values: tuple[int, ...]) -> str:
    return "|".join(map(str, values))


def _number(match: re.Match[str]) -> Number:
    index, size, fast, sign, values, axis, listed = match.groups()
    lists = (tuple(int(v) for v in (text or "").split("|") if v) for text in (values, listed))
    return Number(index, int(size or 0), fast or "", sign or "", next(lists), axis or "", next(lists))


def numbers(name: str) -> Iterator[Number]:
    """The numbers of a bound line's name, in order."""
    return map(_number, _NUMBER.finditer(name))


def first_alternatives(name: str) -> str:
    """A name with the first of its alternatives: what the tensor is called in every checkpoint."""
    return re.sub(r"\(([^|)]*)\|[^)]*\)", r"\1", name)


def filled(name: str, binding: Mapping[str, int]) -> str:
    """A bound line's name with its numbers, first alternatives taken."""
    return "".join(part if isinstance(part, str) else str(part.value(binding)) for part in _parts(name))


@lru_cache(4096)  # the lines of a few specs: every tensor of a checkpoint asks
def _parts(name: str) -> tuple[str | Number, ...]:
    """A bound line's name in pieces, first alternatives taken."""
    first, parts, at = first_alternatives(name), list[str | Number](), 0
    for number in _NUMBER.finditer(first):
        parts += [first[at : number.start()], _number(number)]
        at = number.end()
    return (*parts, first[at:])


def expression(name: str) -> str:
    """The regular expression of a bound line's name."""
    pattern, at = "", 0
    for number in _NUMBER.finditer(name):
        pattern, at = pattern + _literal(name[at : number.start()]) + _number(number).expression(), number.end()
    return pattern + _literal(name[at:])


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\(", "(?:").replace(r"\)", ")").replace(r"\|", "|")


# ------------------------------------------------------------------ in a text


def bound(name: str, evaluate: Evaluate, sizes: Mapping[str, int], lists: Mapping[str, tuple[int, ...]]) -> str:
    """A name of a text with sizes and layers written into it.

    Args:
        name: as the text has it.
        evaluate: what its expressions come to.
        sizes: of the indices that are axes.
        lists: the layers of every ``layers`` statement.

    Raises:
        IsomergeError: layers that are none, or a number that factors into what has no size.
    """

    def sized(match: re.Match[str]) -> str:
        slow, fast = match.groups()
        if not (sizes.get(slow) and sizes.get(fast)):
            raise IsomergeError(f"tensor {name}: {{{slow},{fast}}} needs a `size` line for both before it")
        return f"{{{slow}*{sizes[fast]}+{fast}}}"

    return re.sub(r"\{(\w+),(\w+)\}", sized, chosen(name, evaluate, lists))


def chosen(name: str, evaluate: Evaluate, lists: Mapping[str, tuple[int, ...]]) -> str:
    """A name with the layers that it stands for written into it."""

    def listed(match: re.Match[str]) -> str:
        index, which, text = match.groups()
        start, _, axis = text.rpartition(",")
        if which == ":" and start and axis in lists:
            at = _layers(start, evaluate) if lists[axis] else (0,)
            if len(at) != 1:
                raise IsomergeError(
                    f"tensor {name}: {start} is {list(at)!r}, not the one layer that {axis} is an axis of"
                )
            return f"{{{index}={at[0]},{axis}={_joined(lists[axis])}}}"
        return f"{{{index}{'=' if which == ':' else '!'}{_joined(_layers(text, evaluate))}}}"

    return re.sub(r"\{(\w+)([:!])([^}]+)\}", listed, name)


def _layers(text: str, evaluate: Evaluate) -> tuple[int, ...]:
    """The layers that an expression names or lists, or from one up to another."""
    first, upto, last = text.partition("..")
    value = evaluate(first)
    if upto:
        value = span(text, value, evaluate(last))
    values = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise IsomergeError(f"config.json: {text} is {value!r}, not the number of a layer or a list of them")
    return tuple(values)


def span(text: str, first: Any, last: Any) -> list[int]:
    """The layers from ``first`` up to but without ``last``."""
    whole = all(isinstance(v, int) and not isinstance(v, bool) for v in (first, last))
    if not whole or last - first > MOST_LAYERS:
        raise IsomergeError(f"config.json: {text} is {first!r}..{last!r}, not the numbers of two layers")
    return list(range(first, last))


def read_layers(groups: Groups, text: Reading) -> tuple[str, tuple[int, ...]]:
    """Read what follows the word ``layers``: a name and the layers of which E holds, where ``l`` is the layer.

    Raises:
        IsomergeError: it names no layers.
    """
    name, first, last, condition = groups
    every = span(f"{first}..{last}", text.value(first), text.value(last))
    if every and every[0] < 0:
        raise IsomergeError(f"config.json: {first} is {every[0]}, not the number of a layer")
    return name, tuple(at for at in every if condition is None or text.value(condition, {"l": at}))
