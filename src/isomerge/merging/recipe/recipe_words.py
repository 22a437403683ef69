"""What is said of a recipe's run names the recipe's keys, not the options of the command line that say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from isomerge.errors import NO_VALUES, OPTION, IsomergeError
from isomerge.options import unused
from isomerge.options.requests.merging import Merge

if TYPE_CHECKING:
    from isomerge.merging.recipe.schema import AlignBlock, ExpertsRecipe, Recipe

KEYS = {"stats-src": "stats", "stats-anchor": "stats", "align": "enabled", "no-align": "enabled"}
"""A key of ``align`` where it is not the option's name."""
WHOLE = {"base-model": "base_model", "method": "merge_method", "tokenizer-source": "tokenizer_source"}
"""Keys of the recipe itself."""
STILL = {name for name, key in Merge.recipe_keys().items() if not key.aligns}
"""Keys of ``align`` that say nothing of whether models are aligned, which a block of them alone would do."""
ADVICE = {"leave --no-align out": "say --align"}
"""What a sentence tells to do that is said otherwise in a recipe, which may not have the key."""
COMMAND = re.compile(r"isomerge [a-z-]+ [^,;:]*")
"""A command that a sentence tells to run: its options stay."""


@contextmanager
def told_in_keys(path: Any, recipe: Recipe | ExpertsRecipe | None, options: Mapping[str, Any]) -> Iterator[None]:
    """Errors inside, and what is told of options that are not used, say the keys of a recipe's ``align`` where they
    name options that stand there, or may; errors the recipe's file as well.

    Args:
        path: the recipe's.
        recipe: what it says; None: there is none, and sentences stay as they are.
        options: options as they count, by Python's names: those that the command line says otherwise keep their
            names.
    """
    if recipe is None:
        yield
        return
    say = partial(in_keys, block=recipe.align, options=options)
    try:
        with unused.worded(say):
            yield
    except IsomergeError as error:
        if (sentence := say(error.sentence)) == error.sentence:
            raise
        raise type(error)(f"{path}: {sentence.removeprefix(f'{path}: ')}") from None


def in_keys(sentence: str, block: AlignBlock, options: Mapping[str, Any]) -> str:
    """A sentence with a recipe's keys in place of the options that are said there, or may be."""

    def key(match: re.Match[str]) -> str:
        word, behind = match["word"], match["value"]
        plain = word.removeprefix("no-").replace("-", "_")
        name = WHOLE.get(word) or KEYS.get(word, plain)
        field = type(block).model_fields.get(name)
        said = getattr(block, name, None)
        if (field is None and word not in WHOLE) or options.get(name, said) not in (said,):  # a NaN is itself
            return match[0]
        rest = "" if behind is None else f" {behind}"
        if field is not None and name != "enabled" and name in block.model_fields_set:
            return f"`align.{name}`{rest}"
        if field is not None and bool in (field.annotation, *get_args(field.annotation)):
            name += ": false" if word.startswith("no-") else ": true"
        elif behind is not None and behind not in NO_VALUES:
            name, rest = f"{name}: {behind}", ""
        if field is None:
            return f"`{name}`{rest}"
        if name.startswith("enabled"):
            at = "align" if block.model_fields_set <= {"enabled"} else "align.enabled"
            return f"`{name.replace('enabled', at)}`{rest}"
        # a block alone would align a recipe that aligns nothing
        still = "" if block.enabled or name.partition(":")[0] not in STILL else "enabled: false, "
        return f"`align: {{{still}{name}}}`{rest}" if ":" in name else f"`align.{name}`{rest}"

    for advice, said in ADVICE.items():
        sentence = sentence.replace(advice, said)
    parts, start = [], 0
    for command in COMMAND.finditer(sentence):
        parts += [OPTION.sub(key, sentence[start : command.start()]), command[0]]
        start = command.end()
    return "".join(parts) + OPTION.sub(key, sentence[start:])
