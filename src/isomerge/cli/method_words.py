"""What the command line says of a merge's method: parameters as `name=value`, and which options a recipe says
instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from isomerge.cli.grouped import given_names
from isomerge.options import FusingOptions, SpacesOptions
from isomerge.options.option import spelled


def said_of_method(context: typer.Context) -> list[str]:
    """The options that a recipe says instead and that a user gave, whatever their values, as they are written."""
    names = given_names(context)
    words = {
        name: spelled(name, about)
        for group in (FusingOptions, SpacesOptions)
        for name, (_, about) in group.declared().items()
    }
    return [
        f"--no-{name.replace('_', '-')}" if context.params[name] is False else word
        for name, word in words.items()
        if name in names
    ]


def check_models(models: list[str]) -> None:
    """Refuse numbers among the models: lists of numbers are one text.

    Raises:
        IsomergeError: naming the first, and how it is written.
    """
    from isomerge.errors import IsomergeError

    for model in models:
        try:
            float(model)
        except ValueError:
            continue
        if not Path(model).exists():
            raise IsomergeError(
                f"{model} is taken for a model: several numbers are joined by commas, without spaces, such as "
                "--weights 0.5,0.5 or -p density=0.5,0.3"
            )


def parameters_of(texts: Any) -> dict[str, Any]:
    """``name=value`` with a YAML value; values with commas are one per model."""

    from isomerge.errors import IsomergeError
    from isomerge.merging.recipe.yaml_text import plain_value

    values: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise IsomergeError(f"--parameter {text}: write name=value, such as density=0.5")
        try:
            parts = [plain_value(part) for part in ([value] if value[0] in "[{" else value.split(","))]
        except ValueError as error:
            raise IsomergeError(f"--parameter {text}: {value} is no value ({error})") from None
        values[name] = parts if len(parts) > 1 else parts[0]
    return values
