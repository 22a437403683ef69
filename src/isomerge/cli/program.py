"""All commands as one typer program; each is loaded when it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup

from isomerge.cli.console import leave_without_reader
from isomerge.cli.door import command_of
from isomerge.cli.overview import TAGLINE
from isomerge.cli.written import Writing
from isomerge.doors import COMMANDS
from isomerge.errors import RESUMABLE, IsomergeError, Stopped

SETTINGS: Mapping[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Commands(TyperGroup):
    """The commands, of which each may be stopped; by itself typer leaves without a word."""

    def invoke(self, ctx: Any) -> object:
        """Run a command.

        Raises:
            Stopped: on Ctrl-C, with the sentence to say.
            IsomergeError: words that the command does not take.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            resumable = RESUMABLE in getattr(error, "__notes__", ())
            raise Stopped("stopped; start again to go on" if resumable else "stopped") from None
        except BrokenPipeError:
            leave_without_reader()
        except Exception as error:
            raise _sentence(error, ctx.invoked_subcommand) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that words name.

        Raises:
            IsomergeError: there is none of that name.
        """
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from isomerge.cli.usage import no_command

            raise IsomergeError(no_command(args[0]))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The same of what stands before a command.

        Raises:
            IsomergeError: there is no such option.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            raise _sentence(error, None) from None


def _sentence(error: Exception, name: str | None) -> Exception:
    """What typer's parser says, in one sentence; any other error as it is."""
    if not hasattr(error, "format_message"):
        return error
    from isomerge.cli.usage import misused

    return IsomergeError(misused(error, name))


class NamedCommands(Mapping[str, Any]):
    """The commands by name. One that nobody names is not even imported: all of them together take as long as a
    small merge."""

    def __init__(self) -> None:
        self._loaded: dict[str, object] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._loaded:
            alone = typer.Typer(**SETTINGS)
            alone.callback()(_root)  # with it typer makes a group, also of a single command
            alone.command(name, cls=Writing, short_help=COMMANDS[name][1])(command_of(name))
            group: Any = typer.main.get_command(alone)
            self._loaded[name] = group.commands[name]
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(Commands):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Any = NamedCommands()  # typer says a dictionary, and asks for names, `get` and `items` alone
        self.commands = commands


app = typer.Typer(name="isomerge", cls=Program, help=TAGLINE, **SETTINGS)


def _version(value: bool) -> None:
    if value:
        from isomerge import __version__

        print(f"isomerge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


@cache
def command() -> Callable[[], object]:
    """The program, ready to run: made once in a process, for it takes as long as a small merge."""
    return typer.main.get_command(app)
