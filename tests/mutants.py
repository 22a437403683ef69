"""Plausible wrong specs, which the laws must refute: what they are made of (see `archs/test_mutants.py`)."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A wrong spec: the toy that refutes it, what is wrong, the space that shows it, and the edits that make it."""

    toy: str
    wrong: str
    space: str
    edits: tuple[tuple[str, str], ...]
    part: str | None = None
    """The model type whose text is edited, where the toy's own text includes it."""


def mutant(toy: str, wrong: str, space: str, *edits: str, part: str | None = None) -> Mutant:
    """A mutant from edits written ``old => new``."""
    pairs = [edit.partition(" => ") for edit in edits]
    return Mutant(toy, wrong, space, tuple((old, new) for old, _, new in pairs), part)


class StreamMutant(NamedTuple):
    """A wrong spec of a stream: its toy, what is wrong, the group that it gives the stream, edits ``old => new``."""

    toy: str
    wrong: str
    group: str
    edits: tuple[str, ...]
    stream: str = "res"
