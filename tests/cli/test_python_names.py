"""Commands and the functions of Python's door."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer

import isomerge as library
from isomerge.cli.program import app
from isomerge.doors import ALONE, FUNCTIONS

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_a_function(name: str) -> None:
    """Of its name, with dashes as underscores; or of another, or there is none, and a table says why."""
    function = FUNCTIONS.get(name, name.replace("-", "_"))
    if name in ALONE:
        assert len(ALONE[name].split()) > 5
        assert function not in library.__all__
    else:
        assert inspect.isfunction(getattr(library, function))
        assert function in library.__all__


def test_the_tables_name_commands() -> None:
    """And the page of the reference has them all."""
    assert {*ALONE, *FUNCTIONS} <= COMMANDS.keys()
    page = (Path(__file__).parents[2] / "docs/reference/python.md").read_text()
    for name in (*ALONE, *FUNCTIONS):
        assert f"| `{name}` | " in page


def test_methods_are_what_the_command_lists(isomerge: Any, tmp_path: Path) -> None:
    """One list at both doors."""
    assert isomerge("methods", "--json", tmp_path / "m.json").code == 0
    found = library.methods()
    assert json.loads((tmp_path / "m.json").read_text()) == found
    assert {row["method"] for row in found["methods"]} >= {"linear", "fisher", "regmean", "ties"}
    assert found["methods"][0].keys() == {"method", "summary", "base_model", "parameters", "source"}
