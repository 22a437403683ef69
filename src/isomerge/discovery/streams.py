"""The residual stream: every axis as long as the model is wide that nothing else has claimed, and the norms over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.heads import bias_of
from isomerge.discovery.lines import LineFound, expression
from isomerge.discovery.moments import RELATED, along
from isomerge.discovery.proving import PROVEN, Court

if TYPE_CHECKING:
    from torch import Tensor

STREAMS = ("SignedPerm", "Perm")
FOLDED = ("O", "OFixingOnes")


def prove_stream(draft: Draft, court: Court, lengths: tuple[int, int], name: str) -> Draft:
    """The draft with all free axes of one length typed as a stream, permuted (with signs) where the law allows it.

    Where the whole set is refused, each line is left out in turn: a table of fixed positions has the stream's width too.
    """
    one, two = (s.config for s in court.specimens)
    size = expression(lengths, one, two)
    if size is None:
        return draft
    doubled = (2 * lengths[0], 2 * lengths[1])
    places = {
        (line.name, a): _mark(line, a, name) if line.lengths(a) == lengths else f"[{name} | {name}]'"
        for line in draft.lines
        for a in range(len(line.shapes[0]))
        if line.uniform
        and draft.free(line, a)
        and (
            line.lengths(a) == lengths
            or (line.lengths(a) == doubled and len(line.shapes[0]) == 2 and a != line.out)
        )
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


def _mark(line: LineFound, axis: int, name: str) -> str:
    """How a place carries the stream: gains as diagonals, readers as duals."""
    if len(line.shapes[0]) == 1:
        return f"diag({name})" if is_gain(line) else name
    return name if line.out is None or axis == line.out else f"{name}'"


def is_gain(line: LineFound) -> bool:
    """Whether a vector multiplies: all that is called no bias."""
    return len(line.shapes[0]) == 1 and "bias" not in line.last and line.last != "beta"


def prove_gains(draft: Draft, court: Court, name: str, moments: dict[str, Tensor]) -> Draft:
    """The draft with a scale for every gain over a stream whose readers (or writers) are found, and proven.

    The moments of a gain are the sum of its readers' (Noether's identity of the coordinate's scaling), so that least
    squares over all that carries the stream tells which they are.
    """
    gains = [line for line in draft.lines if draft.axes.get((line.name, 0)) == f"diag({name})"]
    number = 0
    for gain in gains:
        readers = _readers(draft, gain, name, moments)
        if readers is None:
            continue
        scale = _scale(f"n{number + 1}" if name == "res" else f"{name}n{number + 1}", gain, name)
        dual = "'" if any(out for _, out in readers) else ""
        axes = {(gain.name, 0): f"diag({name} {scale.name}{dual})"}
        bias = bias_of(gain, list(draft.lines)) or _named_bias(gain, draft)
        if bias is not None and draft.axes.get((bias.name, 0)) == name and not dual:
            axes[bias.name, 0] = f"({name} {scale.name})"
        for (line, axis), out in readers:
            once = f"({name} {scale.name})" if out else f"({name} {scale.name})'"
            twice = f"[{name} {scale.name} | {name} {scale.name}]'"
            axes[line.name, axis] = twice if draft.axes[line.name, axis].startswith("[") else once
            own = bias_of(line, list(draft.lines))
            if out and own is not None and draft.axes.get((own.name, 0)) == name:
                axes[own.name, 0] = f"({name} {scale.name})"
        tried = draft.typed(axes).sized(**{scale.name: "1"}).with_space(scale)
        if court.accepts(tried, scale.name):
            draft, number = tried, number + 1
    return draft


def _named_bias(gain: LineFound, draft: Draft) -> LineFound | None:
    """The bias of a norm whose tensors are called gamma and beta."""
    wanted = gain.name.replace("gamma", "beta")
    return next((line for line in draft.lines if line.name == wanted and wanted != gain.name), None)


def _scale(name: str, gain: LineFound, stream: str) -> SpaceDraft:
    return SpaceDraft(name, "Scale", (*gain.indices, stream), residual=True)


def _readers(
    draft: Draft, gain: LineFound, name: str, moments: dict[str, Tensor]
) -> list[tuple[tuple[LineFound, int], bool]] | None:
    """What takes a gain's factors: places and whether they are written (a layer scale's writers); None where nothing does."""
    import torch

    if gain.samples[0] not in moments:
        return None
    bias = bias_of(gain, list(draft.lines)) or _named_bias(gain, draft)
    own = along(moments[gain.samples[0]], 0)
    norm = own + along(moments[bias.samples[0]], 0) if bias is not None and bias.samples[0] in moments else own
    layer = _layer(gain)
    for written, target in ((False, norm), (True, own)):
        wanted = (name,) if written else (f"{name}'", f"[{name} | {name}]'")
        ends, columns = [], []
        for line in draft.lines:
            for axis in range(len(line.shapes[0])):
                found = _summed(line, axis, layer, moments) if draft.axes.get((line.name, axis)) in wanted else None
                if found is None or len(line.shapes[0]) < 2:
                    continue
                own_bias = bias_of(line, list(draft.lines)) if written else None
                added = None if own_bias is None else _summed(own_bias, 0, layer, moments)
                found = found if added is None else found + added
                if len(found) == 2 * len(target):  # read twice, side by side
                    found = found.unflatten(0, (2, -1)).sum(0)
                ends.append((line, axis))
                columns.append(found.flatten())
        if not ends or float(target.norm()) == 0:
            continue
        matrix = torch.stack(columns, -1)
        coefficients = torch.linalg.lstsq(matrix, target.flatten().unsqueeze(-1), driver="gelsd").solution.squeeze(
            -1
        )
        gap = float((matrix @ coefficients - target.flatten()).norm() / target.norm())
        chosen = [end for end, c in zip(ends, coefficients.tolist(), strict=True) if abs(c - 1) < 1e-4]
        others = [c for c in coefficients.tolist() if abs(c - 1) >= 1e-4]
        if gap < 1e2 * RELATED and chosen and all(abs(c) < 1e-4 for c in others):
            return [(end, written) for end in chosen]
    return None


def _layer(gain: LineFound) -> str:
    """What names in the layer of a gain's sample begin with; empty for a gain outside the layers."""
    parts = gain.samples[0].split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: first + 1]) + "." if gain.layered and first else ""


def _summed(line: LineFound, axis: int, layer: str, moments: dict[str, Tensor]) -> Tensor | None:
    """The moments of an axis over all tensors of a line: those in one layer, or everywhere for a gain outside them."""
    names = [n for n in line.names if n in moments and (n.startswith(layer) or not line.layered)]
    if not names:
        return None
    total = along(moments[names[0]], axis).clone()
    for name in names[1:]:
        total += along(moments[name], axis)
    return total


def prove_folded(draft: Draft, court: Court, name: str) -> Draft:
    """The draft with the rotations of a stream whose gains can all be folded, where the law proves them."""
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
