"""How large a model becomes that is widened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.options.option import FIRST, Options, option


def _sizes(texts: Sequence[str] | None) -> dict[str, int] | None:
    """The sizes that ``KEY=NUMBER`` says.

    Raises:
        IsomergeError: another form.
    """
    sizes = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not (key and sign and value.strip().isdecimal()):
            raise IsomergeError(f"--set {text}: write KEY=NUMBER, with a key of config.json that says a size")
        sizes[key.strip()] = int(value)
    return sizes or None


@dataclass(frozen=True)
class WideningOptions(Options):
    """The sizes of the wide model."""

    like: Any = option(
        None,
        "A model of the same architecture whose config.json has the sizes: a folder, a hub id, or a config.json.",
        "--like", kind=str | None, panel=FIRST,
    )  # fmt: skip
    sizes: Mapping[str, int] | None = option(
        None,
        "A size by its key of config.json, such as hidden_size=1024; it goes before what --like says.",
        "--set", kind=list[str] | None, read=_sizes, panel=FIRST,
    )  # fmt: skip
    untie: bool = option(
        False, "Give a head that is tied to the embeddings weights of its own.", "--untie", panel=FIRST
    )
