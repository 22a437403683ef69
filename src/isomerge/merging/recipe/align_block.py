"""The block ``align`` of a recipe, whose text nobody vouches for: it runs no code."""

from __future__ import annotations

from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.schema import AlignBlock
from isomerge.observe.data.records import may_be_function

DATA = ("data", "learn", "repair")
"""Keys that name data, which may be a Python function where the command line or Python names it."""


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
                f"{path}: `align.{name}` is {ref}, which is written like a Python function, but a recipe runs "
                f"no code: leave "
                f"it out and give --{name} {ref} on the command line (write a data set with its owner, "
                f"owner/{ref}, and a file "
                f"as ./{ref})"
            )
