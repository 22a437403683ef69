"""Errors about what stands in a recipe name its keys, not the options of the command line that say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from isomerge.errors import OPTION, IsomergeError

if TYPE_CHECKING:
    from isomerge.merging.recipe.schema import AlignBlock, ExpertsRecipe, Recipe

KEYS = {"stats-src": "stats", "stats-anchor": "stats", "no-align": "enabled"}
"""A key of ``align`` where it is not the option's name."""
ADVICE = {
    "--tokenizer-source union": "`tokenizer_source: union`",
    "--untie": "`align: {untie: true}`",
    "(--no-align)": "(`align: false`)",
}
"""What a sentence tells to add, where a recipe alone may say it."""
COMMAND = re.compile(r"isomerge [a-z-]+ [^,;:]*")
"""A command that a sentence tells to run: its options stay."""


@contextmanager
def told_in_keys(path: Any, recipe: Recipe | ExpertsRecipe | None, options: Mapping[str, Any]) -> Iterator[None]:
    """Errors inside say the keys of a recipe's ``align`` where they name options that stand there, and the recipe's
    file.

    Args:
        path: the recipe's.
        recipe: what it says; None: there is none, and errors stay as they are.
        options: options as they count, by Python's names: those that the command line says otherwise keep their
            names.
    """
    try:
        yield
    except IsomergeError as error:
        sentence = error.sentence if recipe is None else in_keys(error.sentence, recipe.align, options)
        if sentence == error.sentence:
            raise
        raise type(error)(f"{path}: {sentence.removeprefix(f'{path}: ')}") from None


def in_keys(sentence: str, block: AlignBlock, options: Mapping[str, Any]) -> str:
    """A sentence with keys of ``align`` in place of the options that are said there."""

    def key(match: re.Match[str]) -> str:
        name = KEYS.get(match[1], match[1].replace("-", "_"))
        said = getattr(block, name, None)
        if name not in block.model_fields_set or options.get(name, said) not in (said,):  # a NaN is itself
            return match[0]
        return "`align.enabled: false`" if name == "enabled" else f"`align.{name}`"

    for option, said in ADVICE.items():
        if option != "--untie" or "untie" not in block.model_fields_set:
            # a block alone would align a recipe that aligns nothing
            still = said if block.enabled else said.replace("{untie", "{enabled: false, untie")
            sentence = sentence.replace(option, still)
    commands = [match.span() for match in COMMAND.finditer(sentence)]
    return OPTION.sub(
        lambda match: match[0] if any(a <= match.start() < b for a, b in commands) else key(match), sentence
    )
