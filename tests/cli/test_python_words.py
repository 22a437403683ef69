"""Errors of Python's functions name the function and its keyword, never the command line's option."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import typer

import isomerge
from cli.test_idle_options import function_of
from isomerge.cli.program import app
from isomerge.cli.written import ALONE
from isomerge.cli.written import IN_PYTHON as ARGUMENTS
from isomerge.errors import IsomergeError
from isomerge.options.python_words import in_python
from isomerge.run.arguments import checked

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
CASES = [
    (command, option, parameter.name)
    for command, found in COMMANDS.items()
    if command not in ALONE
    for parameter in found.params
    for option in (*parameter.opts, *parameter.secondary_opts)
    if option.startswith("--")
]


@pytest.mark.parametrize(("command", "option", "name"), CASES, ids=lambda value: str(value))
def test_every_option_is_a_keyword(command: str, option: str, name: str) -> None:
    """Of every command: told as its function has it, or, of what the function does not have, without dashes."""
    function = function_of((command,))
    keywords = inspect.signature(getattr(isomerge, function)).parameters
    told = in_python(f"{option} is wrong: {option} and more are", function, keywords)
    assert "--" not in told
    name = ARGUMENTS.get(name, name)
    if name in keywords:
        assert told.startswith(f"{function}(..., {name}=")
        assert len(re.findall(rf"\b{name}\b", told.removeprefix(function))) == 2


@pytest.mark.parametrize(
    ("said", "told"),
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
def test_words(said: str, told: str) -> None:
    """Values are written as Python has them, and what is none is left alone; commands for a shell stay."""
    assert in_python(said, "merge", inspect.signature(isomerge.merge).parameters) == told


def test_the_outermost_function_tells() -> None:
    """The command line has its own words, and a function within another leaves it to that."""

    @checked()
    def inner(*, rows: int) -> None:
        raise IsomergeError(f"--rows {rows}: too few")

    @checked()
    def outer(*, rows: int) -> None:
        inner(rows=rows)

    with pytest.raises(IsomergeError) as told:
        outer(rows=3)
    assert str(told.value) == "outer(..., rows=3): too few"
    assert told.value.sentence == "--rows 3: too few"
    with pytest.raises(IsomergeError, match=r"^stats\(\.\.\., rows=0\): "):
        isomerge.stats("a", data="b", out="c", rows=0)
