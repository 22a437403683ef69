"""Parts of a model that alignment leaves as they are: named in the spec, with a reason that every run prints.

``fixed NAME ... : REASON`` names a part by what the names of its tensors begin with: ``layers.{l}.mamba.`` is all
of a mixer, ``layers.{l}.mixer.(A_log|conv1d)`` two of its tensors. Each of the tensors has a line of its own, as
all have: the statement adds no axes, it only says what is true of these lines, and is refused where it is not
(`isomerge.symmetry.legality`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isomerge.records import Record
from isomerge.symmetry.language.spec import Match, Spec


class FixedPart(Record):
    """What of a checkpoint is left fixed."""

    name: str
    tensors: int
    lines: Sequence[str]
    reason: str


def fixed_parts(spec: Spec, matches: Iterable[Match]) -> list[FixedPart]:
    """What of a checkpoint is left fixed."""
    seen = list(matches)
    parts = []
    for part in spec.fixed:
        names = [match.line.name for match in seen if part.has(match.line.name)]
        if names:
            lines = list(dict.fromkeys(names))
            parts.append(FixedPart(joined(lines), len(names), sorted(lines), part.reason))
    return parts


def joined(names: list[str]) -> str:
    """Names as one: what all begin with, and the rest of each, ``layers.{l}.mamba.(A_log|D)``."""
    first, *others = names
    if not others:
        return first
    words = [name.split(".") for name in names]
    shared = next(n for n, each in enumerate(zip(*words, strict=False)) if len(set(each)) > 1)
    rest = sorted(".".join(each[shared:]) for each in words)
    return f"{''.join(f'{word}.' for word in words[0][:shared])}({'|'.join(rest)})"


def fixed_text(parts: Sequence[FixedPart]) -> str:
    """The parts in one sentence."""
    each = [f"{part.name} ({part.tensors} tensors: {part.reason})" for part in parts]
    return f"left fixed, not aligned: {'; '.join(each)}"
