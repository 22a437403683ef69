"""Names of files in Markdown, whatever characters are in them."""

from __future__ import annotations

import re


def code(text: str) -> str:
    """A name between backticks, in one line."""
    text = " ".join(text.splitlines())
    if "`" not in text:
        return f"`{text}`"
    marks = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{marks} {text} {marks}"


def cell(text: str) -> str:
    """The same for a cell of a table, which a bar would end."""
    return code(text).replace("|", "\\|")


def fenced(text: str, language: str) -> list[str]:
    """The lines of a block of code."""
    fence = "`" * max([3, *(1 + len(run) for run in re.findall("`+", text))])
    return [f"{fence}{language}", *text.rstrip("\n").split("\n"), fence]
