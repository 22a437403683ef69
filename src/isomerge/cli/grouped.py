"""Groups of options as parameters of commands: what a command takes a group for becomes the group's options on the
command line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from isomerge.options.option import Option, Options, kind_of


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator for commands: every parameter that is annotated with a group of options gets the group as it was
    given."""
    own = inspect.signature(command, eval_str=True)
    groups = {name: p.annotation for name, p in own.parameters.items() if _is_group(p.annotation)}

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:
        for into, group in groups.items():
            values = {name: arguments.pop(name) for name in group.declared()}
            arguments[into] = group(**{name: _read(group, name, value) for name, value in values.items()})
        return command(**arguments)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        parameters += [parameter] if name not in groups else parameters_of(groups[name])
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapped.__signature__ = own.replace(parameters=kept)  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {p.name: p.annotation for p in kept}
    del wrapped.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def _read(group: type[Options], name: str, value: Any) -> Any:
    about = group.declared()[name][1]
    return value if about.read is None else about.read(value)


def parameters_of(group: type[Options]) -> list[inspect.Parameter]:
    """The options of a group as typer takes them."""
    parameters = []
    for name, (field, about) in group.declared().items():
        default = field.default if about.default is ... else about.default
        annotation = Annotated[kind_of(group, name), _typers(about)]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return parameters


def _typers(about: Option) -> Any:
    return typer.Option(
        *about.names,
        help=about.help,
        rich_help_panel=about.panel,
        min=about.least,
        show_default=about.shown,
        callback=about.callback,
    )


def given_names(context: typer.Context) -> set[str]:
    """The parameters of a command that its user gave, whatever their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name for name, source in sources.items() if source is not None and not source.name.startswith("DEFAULT")
    }
