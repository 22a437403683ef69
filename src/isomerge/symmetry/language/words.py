"""The words of the language: a declaration of each. What they mean: ``docs/lab/spec-language.md``.

A word is declared here: what its statements are about, and what reads them into which field of a spec. The types of that
field and of the records in it say how names change where the model is a part of another (`isomerge.symmetry.language.forms`).
What has no reader here decides what later statements come to, or says several things: ``read_WORD`` of
`isomerge.symmetry.language.spec_text`, or that of texts that are like others (`expansion`), reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.forms import Reading
from isomerge.symmetry.language.statements import (
    read_basis,
    read_biased,
    read_carry,
    read_centred,
    read_fixed,
    read_length,
    read_probe,
    read_reached,
    read_returned,
    read_unheard,
)

BEHIND_PADDING = "behind padding"
NOTHING, NAMED, STREAM = "", "name", "stream"
"""What statements are about: nothing that has a name; what they begin with; a stream, under some condition."""


@dataclass(frozen=True)
class Word:
    """A word with which statements begin."""

    about: str = NAMED
    field: str = ""
    """Of a spec, which keeps what is read."""
    read: Callable[[str, Reading], object] | None = None
    """What the field keeps of all that follows; of some words a list of such. Raises IsomergeError where it is not
    understood."""
    conditional: bool = True
    """Whether ``if E`` may end it."""


def _names(rest: str, text: Reading) -> list[str]:
    return rest.split()


def _stacks(rest: str, text: Reading) -> tuple[str, ...]:
    return tuple(rest.split())


def _positions(rest: str, text: Reading) -> list[str]:
    if rest != BEHIND_PADDING:
        raise IsomergeError(f"positions {rest!r} is not understood: write `positions {BEHIND_PADDING}`")
    return []


WORDS = {
    "model": Word(NOTHING, "models", _names, conditional=False),
    "prefix": Word(NOTHING, conditional=False),
    "size": Word(),
    "layers": Word(),
    "depth": Word(),
    "require": Word(NOTHING, conditional=False),
    "numbered": Word(NOTHING, conditional=False),
    "config": Word(NOTHING, "config_keys", _names, conditional=False),
    "default": Word(),
    "include": Word(),
    "space": Word(),
    "residual": Word(),
    "shift": Word(),
    "carry": Word(NAMED, "carries", read_carry),
    "probe": Word(NAMED, "probes", read_probe),
    "reached": Word(NAMED, "reaches", read_reached),
    "unheard": Word(NAMED, "mutes", read_unheard),
    "basis": Word(NAMED, "bases", read_basis),
    "centred": Word(NAMED, "head_norms", read_centred),
    "length": Word(NAMED, "lengths", read_length),
    "biased": Word(NOTHING, "biased", read_biased),
    "together": Word(NOTHING, "together", _stacks),
    "prenorm": Word(STREAM),
    "postnorm": Word(STREAM),
    "headed": Word(NOTHING, "headed", _names, conditional=False),
    "returns": Word(NOTHING, "returned", read_returned),
    "fixed": Word(NOTHING, "fixed", read_fixed),
    "tied": Word(NOTHING, conditional=False),
    "positions": Word(NOTHING, "", _positions, conditional=False),
    "like": Word(NOTHING, conditional=False),
    "drop": Word(NOTHING, conditional=False),
    "after": Word(NOTHING, conditional=False),
}
"""With what a statement may begin; every other one describes a tensor."""
