"""Options that are declared once, as the parameters of a function, and given to several commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def with_options(declared: Callable[..., Any], into: str, *, last: bool) -> Callable[..., Any]:
    """A decorator for commands: the parameters of ``declared`` become options of the command.

    Args:
        declared: called with what was given for its parameters; every one of them has a default.
        into: the parameter of the command that gets what it returns.
        last: list the options after the command's own ones; else where ``into`` stands.
    """
    more = inspect.signature(declared, eval_str=True)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            asked = {name: given.pop(name) for name in more.parameters}
            return command(**given, **{into: declared(**asked)})

        parameters: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            parameters += [parameter] if name != into else [] if last else list(more.parameters.values())
        parameters += list(more.parameters.values()) if last else []
        kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        wrapped.__signature__ = own.replace(parameters=kept)  # pyright: ignore[reportAttributeAccessIssue]
        wrapped.__annotations__ = {p.name: p.annotation for p in kept}
        del wrapped.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
        return wrapped

    return decorate
