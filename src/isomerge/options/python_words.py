"""Sentences that name the command line's options, in the words of Python: function and keyword."""

from __future__ import annotations

import re
from collections.abc import Collection

from isomerge.errors import IN_PYTHON, NO_VALUES, OPTION

COMMAND = re.compile(r"isomerge [a-z-]+ [^;,()]*")
"""A command to type in a shell, which stays as it is."""


def in_python(sentence: str, function: str, keywords: Collection[str]) -> str:
    """A sentence for who called a function of Python's door: the first of its keywords with the function,
    ``merge(..., data=DATA)``, others alone; commands for a shell stay.

    Args:
        sentence: as the command line prints it.
        function: the function's name.
        keywords: its arguments.
    """
    named = False

    def written(match: re.Match[str]) -> str:
        nonlocal named
        keyword, value, rest = _taken(match["word"], match["value"])
        if keyword.isidentifier():
            shown = f"{keyword}={value or '...'}"
        else:
            return keyword + rest
        if keyword in keywords and not named:
            named = True
            shown = f"{function}(..., {shown})"
        elif not value:
            shown = keyword
        return shown + rest

    parts, start = [], 0
    for command in COMMAND.finditer(sentence):
        parts += [OPTION.sub(written, sentence[start : command.start()]), command[0]]
        start = command.end()
    return "".join(parts) + OPTION.sub(written, sentence[start:])


def _taken(word: str, behind: str | None) -> tuple[str, str, str]:
    """The keyword of an option, its value as Python writes it, and what is left of the word behind it."""
    python = IN_PYTHON.get(word, "")
    keyword, equals, value = python.partition("=")
    rest = "" if behind is None else f" {behind}"
    if python and keyword.isidentifier() and equals:
        return keyword, value, rest
    if python and not python.isidentifier():
        return python, "", rest
    keyword = python or word.replace("-", "_")
    if behind is None or behind in NO_VALUES:
        return keyword, "", rest
    plain = behind.isupper() or behind in ("True", "False", "None") or re.fullmatch(r"-?[\d.]+(e-?\d+)?", behind)
    return keyword, behind if plain else repr(behind), ""
