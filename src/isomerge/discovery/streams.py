"""The residual stream: every axis as long as the model is wide that nothing else has claimed, the norms over it,
and the gains of norms: a factor for every coordinate, from the gain to all that reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.head_chunks import bias_of
from isomerge.discovery.lines import EXPERT, LineFound, Place, expression
from isomerge.discovery.moments import RELATED, along, combination
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


Readers = tuple[list[Place], bool]
"""What takes a gain's factors, and whether it is written (a layer scale's writers)."""


def prove_gains(draft: Draft, court: Court, name: str, moments: Mapping[str, Tensor]) -> Draft:
    """The draft with a scale for every gain over a stream whose readers (or writers) are found, and proven.

    The moments of a gain are the sum of its readers' (Noether's identity of the coordinate's scaling), so that
    least squares over all that carries the stream tells which they are. A gain that is stored less one has the
    moments of 1 + w.
    """
    gains = [line for line in draft.lines if draft.axes.get((line.name, 0)) == f"diag({name})"]
    stored = court.specimens[0].stored
    prefix, number = "n" if name == "res" else f"{name}n", 0
    for gain in gains:
        whole = {n: moments[n] * (1 + 1 / stored[n]) for n in gain.names if n in moments}
        for less, products in (("", moments), (" - 1", {**moments, **whole})):
            readers = _all_readers(draft, gain, name, products)
            if readers is None:
                continue
            scale = SpaceDraft(f"{prefix}{number + 1}", "Scale", (*gain.indices, name), residual=True)
            tried = draft.typed(_axes(draft, gain, name, scale.name, readers, less))
            tried = tried.sized(**{scale.name: "1"}).with_space(scale)
            if court.accepts(tried, scale.name):
                draft, number = tried, number + 1
            break
    return draft


def _axes(
    draft: Draft, gain: LineFound, name: str, scale: str, readers: Readers, less: str
) -> dict[tuple[str, int], str]:
    """The axes of a gain, its bias and its readers with the scale over the stream."""
    ends, written = readers
    dual = "'" if written else ""
    axes = {(gain.name, 0): f"diag({name} {scale}{dual}){less}"}
    bias = _bias(gain, draft)
    if bias is not None and draft.axes.get((bias.name, 0)) == name and not dual:
        axes[bias.name, 0] = f"({name} {scale})"
    for line, axis in ends:
        once = f"({name} {scale})" if written else f"({name} {scale})'"
        twice = f"[{name} {scale} | {name} {scale}]'"
        axes[line.name, axis] = twice if draft.axes[line.name, axis].startswith("[") else once
        own = bias_of(line, draft.lines)
        if written and own is not None and draft.axes.get((own.name, 0)) == name:
            axes[own.name, 0] = f"({name} {scale})"
    return axes


def _bias(gain: LineFound, draft: Draft) -> LineFound | None:
    """The bias of a norm, also of one whose tensors are called gamma and beta."""
    wanted = gain.name.replace("gamma", "beta")
    called = next((line for line in draft.lines if line.name == wanted and wanted != gain.name), None)
    return bias_of(gain, draft.lines) or called


def _all_readers(draft: Draft, gain: LineFound, name: str, moments: Mapping[str, Tensor]) -> Readers | None:
    """What takes a gain's factors in any layer, for layers differ; None where nothing does, or in one layer not."""
    ends: dict[tuple[str, int], Place] = {}
    sides = set()
    for sample in gain.names:
        if sample not in moments or not bool((moments[sample] != 0).any()):
            continue  # no output depends on this one
        readers = _readers(draft, gain, sample, name, moments)
        if readers is None:
            return None
        ends |= {(line.name, axis): (line, axis) for line, axis in readers[0]}
        sides.add(readers[1])
    return (list(ends.values()), sides.pop()) if len(sides) == 1 else None


def _readers(
    draft: Draft, gain: LineFound, sample: str, name: str, moments: Mapping[str, Tensor]
) -> Readers | None:
    """What takes the factors of one gain; None where nothing does."""
    layer = _layer(gain, sample)
    own, bias = along(moments[sample], 0), _bias(gain, draft)
    added = None if bias is None else _summed(bias, 0, layer, moments)
    for written, target in ((False, own if added is None else own + added), (True, own)):
        if float(target.norm()) == 0:
            continue
        carried = _carriers(draft, name, layer, moments, len(target), written)
        chosen = _solved(target, carried)
        if chosen:
            return chosen, written
    return None


def _carriers(
    draft: Draft, name: str, layer: str, moments: Mapping[str, Tensor], length: int, written: bool
) -> list[tuple[Place, Tensor]]:
    """All matrices that read a stream (or write it), with the moments of its coordinates there."""
    wanted = (name,) if written else (f"{name}'", f"[{name} | {name}]'")
    carriers = []
    for line in draft.lines:
        if len(line.shapes[0]) < 2:
            continue
        for axis in range(len(line.shapes[0])):
            moment = _summed(line, axis, layer, moments) if draft.axes.get((line.name, axis)) in wanted else None
            if moment is None:
                continue
            bias = bias_of(line, draft.lines) if written else None
            added = None if bias is None else _summed(bias, 0, layer, moments)
            moment = moment if added is None else moment + added
            if len(moment) == 2 * length:  # read twice, side by side
                moment = moment.unflatten(0, (2, -1)).sum(0)
            carriers.append(((line, axis), moment))
    return carriers


def _solved(target: Tensor, carried: list[tuple[Place, Tensor]]) -> list[Place]:
    """Those whose sum is the target; none where no sum of some is."""
    if not carried:
        return []
    weights, gap = combination(target.flatten(), torch.stack([moment.flatten() for _, moment in carried]))
    chosen = [end for (end, _), c in zip(carried, weights.tolist(), strict=True) if abs(c - 1) < 1e-4]
    others = [c for c in weights.tolist() if abs(c - 1) >= 1e-4]
    return chosen if gap < 1e2 * RELATED and all(abs(c) < 1e-4 for c in others) else []


def _layer(gain: LineFound, sample: str) -> str:
    """What names in the layer of a gain begin with; empty for a gain outside the layers."""
    parts = sample.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: first + 1]) + "." if gain.layered and first else ""


def _summed(line: LineFound, axis: int, layer: str, moments: Mapping[str, Tensor]) -> Tensor | None:
    """The moments of an axis over all tensors of a line: those in one layer, or everywhere for a gain outside
    them."""
    names = [n for n in line.names if n in moments and (n.startswith(layer) or not line.layered)]
    if not names:
        return None
    total = along(moments[names[0]], axis).clone()
    for name in names[1:]:
        total += along(moments[name], axis)
    return total
