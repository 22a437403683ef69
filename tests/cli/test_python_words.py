"""Errors of Python's functions name the function and its keyword, never the command line's option."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import isomerge
from cli.test_idle_options import function_of
from isomerge.cli.door import by_python_names
from isomerge.cli.program import app
from isomerge.doors import ALONE, request_of
from isomerge.errors import IsomergeError
from isomerge.options.option import Request, option
from isomerge.options.python_words import in_python
from isomerge.run.arguments import checked

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
OPTIONS = [
    (command, option, name)
    for command, declared in COMMANDS.items()
    if command not in ALONE
    for name, parameter in by_python_names(request_of(command), {p.name: p for p in declared.params}).items()
    for option in (*parameter.opts, *parameter.secondary_opts)
    if option.startswith("--")
]


def mistakes(command: str, option: str, name: str) -> Iterator[str]:
    """What is wrong with how an error of a command's function calls an option."""
    function = function_of((command,))
    keywords = inspect.signature(getattr(isomerge, function)).parameters
    sentence = in_python(f"{option} is wrong: {option} and more are", function, keywords)
    if "--" in sentence:
        yield f"{command} {option}: {sentence}"
    if name in keywords and not (
        sentence.startswith(f"{function}(..., {name}=")
        and len(re.findall(rf"\b{name}\b", sentence.removeprefix(function))) == 2
    ):
        yield f"{command} {option} is not called {name}: {sentence}"


def test_every_option_is_a_keyword() -> None:
    """Of every command: called as its function has it, or, of what the function does not have, without dashes."""
    assert len(OPTIONS) > 400
    assert [words for case in OPTIONS for words in mistakes(*case)] == []
    assert list(mistakes("merge", "--weights", "seed"))


@pytest.mark.parametrize(
    ("sentence", "python"),
    [
        ("--rows 0: at least 1 is needed", "merge(..., rows=0): at least 1 is needed"),
        ("--data is None: give data", "merge(..., data=...) is None: give data"),
        ("--data and --stats-src are two", "merge(..., data=...) and stats_src are two"),
        (
            "add --data DATA, or files of isomerge stats M --data DATA; or --rows 3",
            "add merge(..., data=DATA), or files of isomerge stats M --data DATA; or rows=3",
        ),
        (
            "pass --overwrite to replace it, not --spaces",
            "pass merge(..., overwrite=True) to replace it, not spaces",
        ),
        ("leave --no-align out", "leave merge(..., align=False) out"),
        ("--spaces default,res:Perm: no", "merge(..., spaces='default,res:Perm'): no"),
        ("--match ot-acts reads no data (--tasks TASK)", "merge(..., match='ot-acts') reads no data (tasks=TASK)"),
        ("nothing -- here and a--b", "nothing -- here and a--b"),
    ],
)
def test_words(sentence: str, python: str) -> None:
    """Values are written as Python has them, and what is none is left alone; commands for a shell stay."""
    assert in_python(sentence, "merge", inspect.signature(isomerge.merge).parameters) == python


def test_the_outermost_function_tells() -> None:
    """The command line has its own words, and a function within another leaves it to that."""

    class Rows(Request):
        rows: int = option(1, "How many.")

    @checked(Rows)
    def inner(asked: Rows) -> None:
        raise IsomergeError(f"--rows {asked.rows}: too few")

    @checked(Rows)
    def outer(asked: Rows) -> None:
        inner(rows=asked.rows)

    with pytest.raises(IsomergeError) as refusal:
        outer(rows=3)
    assert str(refusal.value) == "outer(..., rows=3): too few"
    assert refusal.value.sentence == "--rows 3: too few"
    with pytest.raises(IsomergeError, match=r"^stats\(\.\.\., rows=0\): "):
        isomerge.stats("a", data="b", out="c", rows=0)
