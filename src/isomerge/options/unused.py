"""Options that a run does not use: every option says when it acts (`isomerge.options.option.Option.acts`), and what
does not is noted; and what else is told of what was given.

Notes go to the report (``notes``) and, on the command line, to stderr. A test tries every option that does not act
always where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from isomerge.options.option import Asked, Option, Options, spelled
from isomerge.records import Json

_told: ContextVar[dict[str, None] | None] = ContextVar("told", default=None)
_worded: ContextVar[Callable[[str], str]] = ContextVar("worded", default=str)


def note(name: str, reason: str) -> None:
    """Tell that an option is not used, once.

    Args:
        name: the option as the command line has it; underscores are dashes.
        reason: the end of the sentence.
    """
    tell(f"--{name.replace('_', '-')} is not used: {reason}")


def tell(sentence: str) -> None:
    """Note something else that a command comes upon, once."""
    if (notes_of_run := _told.get()) is not None:
        notes_of_run[_worded.get()(sentence)] = None


@contextmanager
def worded(say: Callable[[str], str]) -> Iterator[None]:
    """What is told inside, in the words that ``say`` gives a sentence."""
    mark = _worded.set(say)
    try:
        yield
    finally:
        _worded.reset(mark)


def is_noting() -> bool:
    """Whether a door has been opened, whose notes are collected."""
    return _told.get() is not None


def notes() -> list[str]:
    """What has been told in this command so far."""
    return list(_told.get() or ())


@contextmanager
def noting() -> Iterator[dict[str, None]]:
    """The notes of a command; one within another, as a door within a door, shares them."""
    outer = _told.get()
    if outer is not None:
        yield outer
        return
    mark = _told.set(own := {})
    try:
        yield own
    finally:
        _told.reset(mark)


def note_idle(request: type[Options], arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Note every option that is not what it is by default and that cannot act.

    Args:
        request: what declares the options.
        arguments: all that were given, by Python's names, and what else decides.
        defaults: those that have some.

    Raises:
        IsomergeError: an option that contradicts another one.
    """
    asked = Asked(arguments)
    for name, (_, about) in request.declared().items():
        acts, value = about.acts, arguments.get(name)
        if isinstance(acts, str) or name not in arguments or _same(value, defaults.get(name)):
            continue
        if (reason := acts(asked)) is not None:
            note(word_of(name, about, value), reason)


def word_of(name: str, about: Option, value: Any = None) -> str:
    """The command line's word for an option that has a value, without dashes: switched off, it may have another."""
    off = (part for word in about.names for part in word.split("/") if part.startswith("--no-"))
    return ((next(off, None) if value is False else None) or spelled(name, about)).removeprefix("--")


def with_notes(report: Json) -> Json:
    """A report, with the notes of its command."""
    noted = report.get("notes", ())
    if further := [text for text in notes() if text not in noted]:
        report["notes"] = [*noted, *further]
    return report


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    return type(value) is type(default) and bool(value == default)
