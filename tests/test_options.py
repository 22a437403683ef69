"""An option is one field: it is found at every door."""

from __future__ import annotations

import ast
import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import isomerge
from isomerge.cli.door import as_command
from isomerge.cli.program import app
from isomerge.errors import IN_PYTHON, IsomergeError
from isomerge.merging.recipe.schema import AlignBlock
from isomerge.options import FusingOptions, MatchingOptions, OutputOptions, RunningOptions, SpacesOptions
from isomerge.options.option import (
    COMMAND_LINE,
    PYTHON,
    Options,
    Request,
    argument,
    group,
    option,
    spelled,
    switches,
)
from isomerge.run.arguments import checked

DOCS = Path(__file__).parents[1] / "docs"


class ScratchOptions(Options):
    """A group that no command has."""

    depth: int = option(3, "How deep.", "--depth", "-d", least=1, panel="Depths")
    kinds: list[str] | None = option(None, "Of what kinds.", "--kind")
    deeper: bool = option(False, "Whether deeper still.", "--deeper", panel="Depths")


class Dig(Request):
    """A command that there is not."""

    place: str = argument("Where.", "spot")
    how: ScratchOptions = group(ScratchOptions)
    loudly: bool = option(False, "Of the terminal.", door=COMMAND_LINE)
    spade: Any = option(None, "An object.", door=PYTHON)


def scratch() -> typer.Typer:
    """A program of one command, which takes the group."""
    program = typer.Typer(rich_markup_mode=None)
    program.command()(as_command(Dig, lambda asked: print(asked.place, asked.how, sorted(asked.said))))
    return program


def test_the_command_line_has_it() -> None:
    """With its names, its help and its bounds; the command gets the request, and what of it was said."""
    run = CliRunner()
    said = run.invoke(scratch(), ["here", "-d", "5", "--kind", "a", "--kind", "b", "--deeper"])
    names = ["deeper", "depth", "kinds", "place"]
    assert said.output == f"here {ScratchOptions(depth=5, kinds=['a', 'b'], deeper=True)} {names}\n"
    assert run.invoke(scratch(), ["here"]).output == f"here {ScratchOptions()} ['place']\n"
    assert run.invoke(scratch(), ["here", "--depth", "0"]).exit_code == 2
    text = run.invoke(scratch(), ["--help"]).output
    assert all(word in text for word in ("spot", "--depth", "-d", "How deep.", "--kind", "--deeper", "--loudly"))
    assert "--spade" not in text
    assert str(Dig.__doc__) in text


def test_python_has_it() -> None:
    """In the signature, checked for its kind; the function gets the request."""

    @checked(Dig)
    def dig(asked: Dig) -> dict[str, Any]:
        """Dig at a place."""
        return {"place": asked.place, "how": asked.how}

    loose: Any = dig
    assert "    depth: How deep." in str(dig.__doc__)
    assert list(inspect.signature(dig).parameters) == ["place", "depth", "kinds", "deeper", "spade"]
    assert inspect.signature(dig).parameters["depth"].default == 3
    assert loose("here", depth=4)["how"] == ScratchOptions(depth=4)
    with pytest.raises(IsomergeError, match=r"^depth='x': give a whole number"):
        loose("here", depth="x")
    with pytest.raises(IsomergeError, match=r"dept: dig has no such argument; did you mean depth"):
        loose("here", dept=3)


def test_messages_spell_it() -> None:
    """A switch, as Python writes it."""
    assert switches()["deeper"] == "deeper=True"
    assert IN_PYTHON["overwrite"] == "overwrite=True"
    assert spelled("kinds", ScratchOptions.declared()["kinds"][1]) == "--kind"


def test_recipes_have_every_option_of_a_match() -> None:
    """But files of statistics, which a recipe lists as one."""
    assert set(MatchingOptions.declared()) - {"stats_src", "stats_anchor"} < set(AlignBlock.model_fields)


@pytest.mark.parametrize("group", [FusingOptions, MatchingOptions, OutputOptions, RunningOptions, SpacesOptions])
def test_merge_has_the_groups_at_both_doors(group: type[Options]) -> None:
    """Under one name, with one help, and on its page of the reference."""
    commands: Any = typer.main.get_command(app)
    found = {parameter.name: parameter for parameter in commands.commands["merge"].params}
    page = (DOCS / "reference" / "commands" / "merge.md").read_text()
    for name, (_, about) in group.declared().items():
        assert name in inspect.signature(isomerge.merge).parameters
        assert found[name].help == about.help
        assert f"`{spelled(name, about)}`" in page


def test_the_stub_is_current() -> None:
    """What editors see is what the functions take."""
    made = runpy.run_path(str(DOCS / "make_stub.py"))
    text = made["STUB"].read_text()
    assert ast.unparse(ast.parse(text)) == ast.unparse(ast.parse(made["stub"]())), "run python docs/make_stub.py"
