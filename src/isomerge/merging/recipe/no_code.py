"""What a recipe may not do, as nobody vouches for its text: it runs no code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.merge_recipe import DATA
from isomerge.observe.data.records import may_be_function
from isomerge.plug_ins.command import given_modules
from isomerge.plug_ins.modules import plain_name

if TYPE_CHECKING:
    from isomerge.merging.recipe.schema import AlignBlock


def check_imports(names: Sequence[str], path: str | Path) -> None:
    """Refuse modules that a recipe wants imported, and that whoever runs it has not named as well.

    Args:
        names: modules, and files by their paths.
        path: the recipe.

    Raises:
        IsomergeError: saying how to name them.
    """
    imported = {module.name for module in given_modules()}
    if lacking := [name for name in names if plain_name(name) not in imported]:
        raise IsomergeError(
            f"{path}: `import` names {', '.join(lacking)}, but a recipe runs no code: look at it, and if you trust "
            f"it add {' '.join(f'--import {shlex.quote(name)}' for name in lacking)}"
        )


def check_no_code(block: AlignBlock, path: str | Path) -> None:
    """Refuse a Python function as data, by the way it is written: to look for its module may already import a
    package.

    Raises:
        IsomergeError: saying how to give it.
    """
    for name in DATA:
        ref = getattr(block, name)
        if ref is not None and may_be_function(ref):
            raise IsomergeError(
                f"{path}: `align.{name}` is {ref}, which is written like a Python function, but a recipe runs no "
                f"code: leave it out and give --{name} {ref} on the command line (write a data set with its owner, "
                f"owner/{ref}, and a file as ./{ref})"
            )
