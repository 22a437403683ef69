"""Statements of a spec text as they are read: other texts taken in, and every line of its own.

======================  ==================================================================================
``like MODEL``          starts with the statements of MODEL's text
``drop NAME ...``       leaves out what is called so; ``drop WORD NAME ...`` only where the statement is WORD
``after NAME``          what follows, and is new, stands behind NAME
``MODULE.*  AXES``      the lines of ``MODULE.weight`` and ``MODULE.bias``
``A, B  AXES``          the same axes for several names: a line for each
======================  ==================================================================================

A statement about something that the text before it has (a size, a space, a line, a key's default, ...) takes that
one's place; a new one stands behind the statement before it, or at the end. ``NAME`` may end in ``*``. Statements
without a name (``require``, ``config``, ...: `isomerge.symmetry.language.words`) are dropped by their word, all of a
kind.

A bias has the first axis of its weight, the rows: ``MODULE.*  (h qk) res'`` is ``MODULE.weight  (h qk) res'`` and
``MODULE.bias  (h qk)``. That of a norm is a vector where its gain is a diagonal: ``NORM.*  diag(res n1)`` is
``NORM.weight diag(res n1)`` and ``NORM.bias  (res n1)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property, lru_cache

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.words import NAMED, NOTHING, WORDS

LINE = "line"
_KIND = {"residual": "space"}
_OPEN, _CLOSE = "([{", ")]}"
Texts = Mapping[str, tuple[str, str]]
"""From every known ``model_type`` to the file name and the text of its spec."""


@dataclass(frozen=True)
class Statement:
    """One statement of a text."""

    place: str
    """The file and the number of the line."""
    word: str
    """Its first word; ``line`` for tensors."""
    body: str
    """What follows the word, without the condition; all of it for tensors."""
    condition: str | None = None
    """What must hold for it to be read."""

    @cached_property
    def name(self) -> str:
        """What it is about; nothing for statements without a name."""
        if self.word == LINE:
            return self.tensor
        if WORDS[self.word].about == NOTHING:
            return ""
        return re.split(r"[\s:=]", self.body.lstrip("? "), maxsplit=1)[0]

    @property
    def tensor(self) -> str:
        """The name of a tensor's line."""
        return self.body.lstrip("? ").partition(" ")[0]

    @cached_property
    def subject(self) -> tuple[str, str]:
        """What it takes the place of: a statement of the same kind about the same thing; none without a name."""
        return _KIND.get(self.word, self.word), self.name

    @cached_property
    def apart(self) -> tuple[Statement, ...]:
        """One for every tensor that it is about; see `each` and `modules`."""
        return tuple(single for named in each(self) for single in modules(named))

    def __str__(self) -> str:
        text = self.body if self.word == LINE else f"{self.word} {self.body}"
        return text if self.condition is None else f"{text} if {self.condition}"


def expanded_text(text: str, origin: str = "spec", texts: Texts | None = None) -> str:
    """A text with everything written out: what `expanded` finds, a statement a line."""
    return "\n".join(map(str, expanded(text, origin, texts or {})))


def expanded(text: str, origin: str, texts: Texts) -> list[Statement]:
    """The statements of a text, those of the text that it is like among them, one for every tensor.

    Args:
        text: see `isomerge.symmetry.language.spec_text`.
        origin: what to call the text in messages.
        texts: those that it may be like, by ``model_type``.

    Raises:
        IsomergeError: it is like a text that is not there or like itself, or drops what is not there.
    """
    return _expanded(text, origin, texts, ())


def written_out(text: str) -> bool:
    """Whether a text is like no other."""
    return not any(line.startswith("like ") for line in text.splitlines())


def family_of(text: str, origin: str, texts: Texts) -> str:
    """The file name of the text that a text is like, over any way; its own where it is written out."""
    for line in text.splitlines():
        if line.startswith("like ") and line.split()[1] in texts:
            name, other = texts[line.split()[1]]
            return family_of(other, name, texts)
    return origin


def _expanded(text: str, origin: str, texts: Texts, within: tuple[str, ...]) -> list[Statement]:
    taken: list[Statement] = []
    at = None
    """Behind which statement a new one stands; None: at the end."""
    replaced: set[tuple[str, str]] = set()
    elsewhere: set[tuple[str, str]] = set()
    """What the text that this one is like has statements about."""
    for statement in statements(text, origin):
        if statement.word == "like":
            if taken:
                raise IsomergeError(f"{statement.place}: `like` comes first, before every other statement")
            taken = _like(statement, texts, within)
            elsewhere = {single.subject for single in taken if single.name}
        elif statement.word == "drop":
            taken, at = _dropped(statement, taken), None
        elif statement.word == "after":
            at = 1 + _last(statement, taken)
        else:
            for single in statement.apart:
                new = single.subject not in elsewhere or single.subject in replaced
                taken, at = _placed(single, taken, at, new=new)
                replaced.add(single.subject)
    return taken


def _like(statement: Statement, texts: Texts, within: tuple[str, ...]) -> list[Statement]:
    """What the other text says, but of which models."""
    kind = statement.body
    if kind not in texts:
        raise IsomergeError(f"{statement.place}: like {kind}: there is no spec for this model_type")
    if kind in within:
        raise IsomergeError(
            f"{statement.place}: like {kind}: this text is like itself: {' like '.join((*within, kind))}"
        )
    name, text = texts[kind]
    return [other for other in _expanded(text, name, texts, (*within, kind)) if other.word != "model"]


def _dropped(statement: Statement, taken: list[Statement]) -> list[Statement]:
    first, *names = statement.body.split()
    word = first if first in WORDS and (names or WORDS[first].about != NAMED) else None
    for name in names if word else [first, *names]:
        kept = [earlier for earlier in taken if not _is_called(earlier, name, word)]
        if len(kept) == len(taken):
            raise IsomergeError(f"{statement.place}: drop {name}: nothing before it is called so")
        taken = kept
    if word and not names:
        kept = [earlier for earlier in taken if earlier.word != word]
        if len(kept) == len(taken):
            raise IsomergeError(f"{statement.place}: drop {word}: there is no such statement before it")
        taken = kept
    return taken


def _is_called(statement: Statement, name: str, word: str | None = None) -> bool:
    if not statement.name or (word is not None and _KIND.get(word, word) != statement.subject[0]):
        return False
    return statement.name == name or (name.endswith("*") and re.match(_glob(name), statement.name) is not None)


def _glob(name: str) -> str:
    """A name in which stars stand for anything; brackets stand for themselves."""
    return translate(name.replace("[", "[[]"))


def _last(statement: Statement, taken: list[Statement]) -> int:
    """Where the last statement is that is called so."""
    hits = [
        k
        for k, earlier in enumerate(taken)
        if _is_called(earlier, statement.body) or earlier.word == statement.body
    ]
    if not hits:
        raise IsomergeError(f"{statement.place}: after {statement.body}: nothing before it is called so")
    return hits[-1]


def _placed(
    statement: Statement, taken: list[Statement], at: int | None, *, new: bool
) -> tuple[list[Statement], int | None]:
    """The statements with one more, in the place of those about the same thing that came from elsewhere unless it is
    new, and where the next stands."""
    old = [] if new else [k for k, other in enumerate(taken) if other.subject == statement.subject]
    if old:
        kept = [other for k, other in enumerate(taken) if k not in old[1:]]
        kept[old[0]] = statement
        return kept, old[0] + 1
    if at is None:
        return [*taken, statement], None
    return [*taken[:at], statement, *taken[at:]], at + 1


def each(statement: Statement) -> Iterator[Statement]:
    """A statement, or a line for every name of several."""
    body = statement.body.lstrip("? ")
    names, rest = [], body
    while statement.word == LINE and (first := rest.partition(" ")[0]).endswith(","):
        names.append(first.removesuffix(","))
        rest = rest.partition(" ")[2].strip()
    if not names:
        yield statement
        return
    name, _, axes = rest.partition(" ")
    mark = "? " if statement.body.startswith("?") else ""
    for called in (*names, name):
        yield Statement(statement.place, LINE, f"{mark}{called} {axes.strip()}", statement.condition)


def modules(statement: Statement) -> Iterator[Statement]:
    """A statement, or the two lines that a module's stands for.

    Raises:
        IsomergeError: a module of which no bias follows.
    """
    name = statement.tensor
    if statement.word != LINE or not name.endswith(".*"):
        yield statement
        return
    module = name.removesuffix("*")
    optional = "? " if statement.body.startswith("?") else ""
    axes = statement.body.lstrip("? ").partition(" ")[2].strip()
    if "=" in axes or not axes:
        raise IsomergeError(
            f"{statement.place}: {name}: write the lines of weight and bias apart, each with its axes"
        )
    first = _first_axis(axes)
    inner = re.fullmatch(r"diag\((.*)\)'?", first)
    bias = first if inner is None else f"({inner[1]})" if " " in inner[1] else inner[1]
    yield Statement(statement.place, LINE, f"{optional}{module}weight {axes}", statement.condition)
    yield Statement(statement.place, LINE, f"{optional}{module}bias {bias}", statement.condition)


def _first_axis(axes: str) -> str:
    depth = 0
    for k, letter in enumerate(axes):
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == " " and not depth:
            return axes[:k]
    return axes


@lru_cache(1024)  # the same texts are bound to one config after the other, and like each other
def statements(text: str, origin: str) -> tuple[Statement, ...]:
    """The statements as a text writes them, without comments."""
    return tuple(_written(text, origin))


def _written(text: str, origin: str) -> Iterator[Statement]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#(\s.*|$)", "", raw).strip()
        if not line:
            continue
        first, _, rest = line.partition(" ")
        word, body = (first, rest.strip()) if first in WORDS else (LINE, line)
        plain = word != LINE and not WORDS[word].conditional
        body, condition = (body, None) if plain else conditioned(body)
        yield Statement(f"{origin}, line {number}", word, body, condition)


def conditioned(body: str) -> tuple[str, str | None]:
    """What stands before a last `` if `` outside of brackets and quotes, and the condition behind it; in ``A if C
    else B`` there is none."""
    depth, quote, at = 0, "", -1
    for k, letter in enumerate(body):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (letter == '"' or _opens(body, k)):
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSE)
            if not depth and body.startswith(" if ", k):
                at = k
            elif not depth and body.startswith(" else ", k):
                at = -1
    return (body, None) if at < 0 else (body[:at].rstrip(), body[at + 4 :].strip())


def _opens(body: str, k: int) -> bool:
    """Whether an apostrophe opens a quotation: behind a name or a bracket it makes an axis dual."""
    return k == 0 or not (body[k - 1].isalnum() or body[k - 1] in ")]_")
