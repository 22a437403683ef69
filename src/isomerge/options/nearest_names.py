"""Which name was probably meant by one that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant: of the same letters, one that the word begins, or that begins or ends it,
    or one spelt much alike."""
    names = [*known]
    plain = {name: name.replace("_", "-") for name in names}
    word = word.lower().replace("_", "-")
    near = [name for name, n in plain.items() if n.replace("-", "") == word.replace("-", "")]
    near += [
        name for name, n in plain.items()
        if word and (n.startswith(word) or word.startswith(n) or word.endswith(f"-{n}"))
    ]  # fmt: skip
    close = get_close_matches(word, plain.values(), 1, 0.79)
    return next(iter(near or [name for name, n in plain.items() if n in close]), None)
