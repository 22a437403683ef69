"""The command line's door: a command is made of what it is asked for (`isomerge.options.option.Request`), run by
Python's function of its name, and told by the module of its theme in this package.

Of a command ``x`` that module has ``tell_x``, which prints its report and returns the exit code, or the error,
where the run is no success; ``plan_x``, which prints what ``--dry-run`` tells and returns its report; and ``run_x``
where more is to be done than Python's function does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any

import typer

from isomerge.cli.console import Voice, write_json
from isomerge.doors import COMMANDS, function_of, request_of
from isomerge.errors import IsomergeError
from isomerge.options import unused
from isomerge.options.option import PYTHON, Given, Option, Options, Request, kind_of, required


def command_of(name: str) -> Callable[..., None]:
    """A command by its name, as typer takes it."""
    return as_command(request_of(name), lambda asked: run(name, asked))


def as_command(request: type[Request], run: Callable[[Any], None]) -> Callable[..., None]:
    """What runs a request, as typer takes it: every argument and option is a parameter."""

    def command(context: typer.Context, **given: Any) -> None:
        values = by_python_names(request, given)
        declared = request.declared()
        asked = request.of({n: v if (read := declared[n][1].read) is None else read(v) for n, v in values.items()})
        if request.settled:
            unused.note_idle(request, asked.given(), request.defaults())
        said = frozenset(by_python_names(request, dict.fromkeys(given_names(context))))
        run(replace(asked, said=said))

    own = [
        inspect.Parameter(
            word_of(option, about),
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if required(declared, about) else _default(declared.default, about),
            annotation=Annotated[kind_of(declared, about), _typers(about)],
        )
        for option, (declared, about) in request.declared().items()
        if about.door != PYTHON
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    command.__signature__ = inspect.Signature([context, *own])  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {p.name: p.annotation for p in (context, *own)}
    command.__doc__ = request.__doc__
    return command


def word_of(name: str, about: Option) -> str:
    """What the command line calls a parameter."""
    return about.names[0] if about.positional and about.names else name


def by_python_names(request: type[Request], given: Mapping[str, Any]) -> Given:
    """Parameters of the command line by the names that Python has for them."""
    words = {name: word_of(name, about) for name, (_, about) in request.declared().items()}
    return {name: given[word] for name, word in words.items() if word in given}


def _default(default: Any, about: Option) -> Any:
    return default if about.default is ... else about.default


def _typers(about: Option) -> Any:
    if about.positional:
        return typer.Argument(help=about.help, show_default=about.shown)
    return typer.Option(
        *about.names,
        help=about.help,
        rich_help_panel=about.panel,
        min=about.least,
        show_default=about.shown,
        callback=about.callback,
        metavar=about.metavar,
    )


def given_names(context: typer.Context) -> set[str]:
    """The parameters of a command that its user gave, whatever their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name for name, source in sources.items() if source is not None and not source.name.startswith("DEFAULT")
    }


def run(command: str, asked: Any) -> None:
    """Do what is asked for, or plan it, and tell.

    Args:
        command: its name.
        asked: its request.

    Raises:
        IsomergeError: what stands in the way.
        typer.Exit: with the exit code of what is no success.
    """
    function = function_of(command)
    module = import_module(f"isomerge.cli.{COMMANDS[command][0]}")
    plan, own, tell = (getattr(module, f"{what}_{function}", None) for what in ("plan", "run", "tell"))
    voice = Voice(asked.telling.quiet, getattr(asked.telling, "verbose", False))
    end = None
    if plan is not None and asked.planning.dry_run:
        report = plan(voice, asked)
    else:
        report = _report_of(own, function, voice, asked)
        end = None if tell is None else tell(voice, asked, report)
        if (pushed := asked.given().get("push_to_hub")) is not None:
            voice.say(f"Pushed to {pushed}.")
    write_json(asked.telling.json, report)
    if isinstance(end, Exception):
        raise end
    if end:
        raise typer.Exit(end)


def call_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python's door as it takes a request."""
    return getattr(function, "asked")  # noqa: B009


def check_alone(recipe: str, asked: Request, *groups: type[Options]) -> None:
    """Refuse options that a recipe says instead, where they were given, whatever their values.

    Raises:
        IsomergeError: naming them as they are written.
    """
    given = asked.given()
    declared = {name: about for each in groups for name, (_, about) in each.declared().items()}
    said = [f"--{unused.word_of(n, about, given[n])}" for n, about in declared.items() if n in asked.said]
    if said:
        raise IsomergeError(
            f"{recipe}: a recipe says what is merged and how: leave out {', '.join(said)}, and change the recipe"
        )


def _report_of(own: Any, function: str, voice: Voice, asked: Any) -> Any:
    """What the command's own run or Python's function returns, without what else it returns."""
    import isomerge

    if own is not None:
        return own(voice, asked)
    call = call_of(getattr(isomerge, function))
    if not asked.progress:
        return call(asked)
    with voice.progress(asked.progress) as observer:
        result = call(asked, observer)
    return result[-1] if isinstance(result, tuple) else result
