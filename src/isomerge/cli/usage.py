"""What is said of words that are no command, no option, or no value of one: a sentence, with what was meant."""

from __future__ import annotations

import os
import re
from typing import Any

from isomerge.cli.mergekit_options import in_place_of
from isomerge.doors import COMMANDS
from isomerge.errors import with_points
from isomerge.options.nearest_names import nearest

_QUOTED = re.compile("'([^']*)'")


def misused(error: Any, name: str | None) -> str:
    """An error of typer's parser, whose classes have no public names, as one sentence.

    Args:
        error: with ``format_message``, and what it is about as attributes.
        name: of the command whose words were read; None before there is one.
    """
    way = f"isomerge {name} -h shows what it takes" if name else "isomerge -h shows what there is"
    if hasattr(error, "possibilities"):
        option = error.option_name
        known = [word for parameter in error.ctx.command.params for word in parameter.opts if word.startswith("--")]
        near = nearest(option.removeprefix("--"), (word[2:] for word in known))
        hint = f": did you mean --{near}?" if near else f"; {way}"
        word = option.lstrip("-").replace("-", "_")
        if near is None and "--parameter" in known and _is_parameter(word):
            hint = f": it is a parameter of merge methods, so write --parameter {word}=VALUE"
        return in_place_of(option) or f"{name or 'isomerge'} has no option {option}{hint}"
    said = error.format_message().rstrip(".").replace("argument(s)", "argument")
    if (parameter := getattr(error, "param", None)) is not None:
        label = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
        if hasattr(error, "param_type"):  # it is missing
            return f"{name} needs {label} ({' '.join(parameter.help.split()).rstrip('.')}); {way}"
        said = f"{label}: {error.message[:1].lower()}{error.message[1:].rstrip('.')}"
        given = error.__cause__ or error.__context__
        texts = [row["input"] for row in given.errors()] if hasattr(given, "errors") else _QUOTED.findall(said)
        said += "".join(map(with_points, texts))
    return f"{name or 'isomerge'}: {said[:1].lower()}{said[1:]}; {way}"


def no_command(word: str) -> str:
    """Of a first word that is none; of a model's place, that a command is missing before it."""
    if near := nearest(word, COMMANDS):
        return f"isomerge has no command {word}: did you mean {near}?"
    if os.sep in word or os.path.exists(word):
        return f"a command is missing before {word}, such as isomerge merge {word}; isomerge -h lists all"
    return f"isomerge has no command {word}; isomerge -h lists all"


def _is_parameter(word: str) -> bool:
    from isomerge.fusion.registry import is_parameter

    return is_parameter(word)
