"""The residual stream: every axis as long as the model is wide that nothing else has claimed, and the norms over
it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.lines import EXPERT, LineFound, expression
from isomerge.discovery.proving import PROVEN, Court

ADDED = re.compile("bias|^beta$|embed|token|newline|quer|probe")
"""What vectors are called that are added, or stand in the place of a token."""
MERGED = range(3, 17)
"""How many patches, or layers' outputs, are read side by side where a projector merges them."""
STREAMS = ("SignedPerm", "Perm")
FOLDED = ("O", "OFixingOnes")


def prove_stream(draft: Draft, court: Court, lengths: tuple[int, int], name: str) -> Draft:
    """The draft with all free axes of one length typed as a stream, permuted (with signs) where the law allows it.

    Where the whole set is refused, each line is left out in turn: a table of fixed positions has the stream's width
    too.
    """
    first, second = (s.keys for s in court.specimens)
    size = expression(lengths, first, second)
    if size is None:
        return draft
    places = {
        (line.name, a): mark
        for line in draft.lines
        for a in range(len(line.shapes[0]))
        if line.uniform and draft.free(line, a) and (mark := _place(draft, line, a, lengths, name))
    }
    sized = draft.sized(**{name: size})
    typed = sized.typed(places)
    for group in STREAMS:
        space = SpaceDraft(name, group, residual=True)
        if court.accepts(typed.with_space(space), name):
            return typed.with_space(space)
    space = SpaceDraft(name, "Perm", residual=True)
    for left_out in _suspects(draft, places):
        kept = {key: text for key, text in places.items() if key not in left_out}
        tried = sized.typed(kept).with_space(space)
        if kept and (error := court.error(tried, [name])) < PROVEN:
            court.note(tried, [name], error)
            return tried
    return typed


def _suspects(draft: Draft, places: Mapping[tuple[str, int], str]) -> Iterator[set[tuple[str, int]]]:
    """What may be of the stream's width by chance: one axis, one line, or all that one module owns."""
    for place in places:
        yield {place}
    for line in sorted({line for line, _ in places}):
        yield {place for place in places if place[0] == line}
    modules = {line.module for line in draft.lines} | {line.module.rpartition(".")[0] for line in draft.lines}
    for module in sorted(modules - {""}):
        inner = {place for place in places if place[0].startswith(f"{module}.")}
        if len(inner) > 1:
            yield inner


def _place(draft: Draft, line: LineFound, axis: int, lengths: tuple[int, int], name: str) -> str:
    """How a place of the stream's width carries it, or one that reads it several times; empty for other lengths."""
    own = line.lengths(axis)
    if (
        own == lengths and line.out is None and len(line.shapes[0]) == 3
    ):  # fused experts: they read where they write neurons
        others = [draft.axes.get((line.name, a), "") for a in range(3) if a != axis]
        written = any(text not in ("", EXPERT) for text in others) and not any("'" in text for text in others)
        return f"{name}'" if written else name
    if own == lengths:
        return _mark(line, axis, name)
    reads = len(line.shapes[0]) == 2 and axis != line.out
    if reads and own == (2 * lengths[0], 2 * lengths[1]):
        return f"[{name} | {name}]'"
    many = next((n for n in MERGED if own == (n * lengths[0], n * lengths[1])), None)
    if many and len(line.shapes[0]) == 1:
        return f"({many} {name})"  # the norm of what is read side by side
    return f"({many} {name})'" if many and reads else ""


def _mark(line: LineFound, axis: int, name: str) -> str:
    """How a place carries the stream: gains as diagonals, readers as duals."""
    if len(line.shapes[0]) == 1:
        return f"diag({name})" if is_gain(line) else name
    return name if line.out is None or axis == line.out else f"{name}'"


def is_gain(line: LineFound) -> bool:
    """Whether a vector multiplies: all that is called neither a bias nor something that stands among tokens."""
    return len(line.shapes[0]) == 1 and not ADDED.search(line.last)


def prove_folded(draft: Draft, court: Court, name: str) -> Draft:
    """The draft with the rotations of a stream or a latent whose gains can all be folded, where the law proves
    them."""
    space = draft.spaces.get(name)
    if space is None:
        return draft
    gains = [text for text in draft.axes.values() if text.startswith(f"diag({name}")]
    if not gains or any(text == f"diag({name})" for text in gains):
        return draft
    for group in FOLDED:
        tried = draft.with_space(replace(space, folded=group))
        error = court.turned(tried)
        shown = tried.with_space(replace(space, group=group))
        court.note(shown, [name], error)
        if error < PROVEN:
            return tried
    return draft
