"""Anchors: vectors of a residual stream that have a name of their own, from which its circuits are seen.

Where a stream can be turned they come from the rows of its embeddings, which turn with it: of tokens, positions or
patches. Where nothing acts on a stream (sinusoids are added to it, or convolutions in groups of channels read it),
its coordinates have names already. There are four draws of them, which fail in different ways: two lots of single
rows, which a table that grew keeps; sums of all rows with random signs, which no few rows can move and in which
every row has its place; and sums of rows that are alike in length, which do not know the order of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.matching.balance import fold_biases
from isomerge.matching.frame import has_shared_meaning
from isomerge.models.layer_norm_form import opened_streams, tied_heads
from isomerge.models.recognised import Model, Moved
from isomerge.quotient.draws import by_norm, chosen, signs, sketch
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom, atoms
from isomerge.symmetry.blocks import Block, Blocks, leaves
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts

TOKENS, OTHERS, EVERY, LENGTHS = "tokens", "other tokens", "all rows", "lengths of rows"
DRAWS = (TOKENS, OTHERS, EVERY, LENGTHS)
"""The draws of anchors. Single rows, others, sums of all rows by their places, and sums of all rows by their
lengths."""
POINTS = 33
"""Quantiles that the lengths of a table's rows are told by."""


@dataclass(frozen=True)
class Anchors:
    """Vectors of a residual stream that have a name of their own."""

    names: tuple[str, ...]
    rows: Tensor
    """[anchors, width]."""
    means: Tensor | None = None
    """[anchors, 1]: what rows of a table that is the head as well have along the ones, zero for all others. It
    was taken off the rows, and the head reads it; None where nothing was taken off."""
    heads: frozenset[str] = frozenset()
    """The scales of norms that such a head reads."""
    unmarked: bool = False
    """Whether no text marks who reads the stream (nothing acts on it): tensors do that do not begin with it."""


@dataclass(frozen=True)
class Table:
    """What is told of a table of embeddings, whatever the basis of its stream."""

    rows: int
    lengths: Tensor
    """float64 [at most `POINTS`]: quantiles of the lengths of its rows, falling."""


def table_of(name: str) -> str:
    """The table, or the stream, that an anchor is from, by its name."""
    return re.sub(r"[#+%]\d+$", "", name)


Draws = dict[str, dict[str, Anchors]]
"""The anchors of every stream, by draw; a draw may lack a stream whose tables are small."""


def table_rows(spec: Spec, block: Block, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The streams that a block outside the layers feeds, each with its rows [rows, width]; none where it is no
    input of a stream."""
    for (view,), axes, _ in leaves(spec, block, tensor):
        stream_atoms = [a for a in axes if a.name in spec.residual_names]
        if (
            len(stream_atoms) != 1
            or stream_atoms[0].name not in spec.streams
            or stream_atoms[0].dual
            or stream_atoms[0].diag
        ):
            continue  # a head, a gain, or the bias of a norm, whose scale is another gauge
        rows = view.movedim(axes.index(stream_atoms[0]), -1)
        yield stream_atoms[0].name, rows.reshape(-1, rows.shape[-1])


def drawn(key: str, rows: Tensor, dtype: torch.dtype, salt: str) -> tuple[dict[str, Anchors], Table]:
    """The anchors of every draw from the rows of one table, and what is told of it.

    Args:
        key: the table's name.
        rows: [rows, width], of any dtype.
        dtype: of the anchors.
        salt: what the draws are made with.
    """

    by_draw = {}
    for number, draw in enumerate((TOKENS, OTHERS)):
        if places := chosen(key, len(rows), number, salt):
            by_draw[draw] = Anchors(tuple(f"{key}#{n}" for n in places), rows[places].to(dtype))
    whole, (near, lengths) = sketch(key, rows, dtype, salt), by_norm(rows, dtype)
    by_draw[EVERY] = Anchors(tuple(f"{key}+{n}" for n in range(len(whole))), whole)
    by_draw[LENGTHS] = Anchors(tuple(f"{key}%{n}" for n in range(len(near))), near)
    at = torch.linspace(0, len(rows) - 1, min(POINTS, len(rows))).round().long()
    return by_draw, Table(len(rows), lengths[at].double())


def mapped_rows(
    spec: Spec, block: Block, tensor: Tensor, anchors: Mapping[str, Anchors], salt: str = ""
) -> Iterator[tuple[str, Anchors]]:
    """The anchors of one stream in another that begins as a linear map of it, as where embeddings are narrower than
    layers, or where a convolution leads to the next stage: of its taps one sum with random signs.

    Args:
        tensor: a block outside the layers, with gains folded.
        anchors: of the streams that have some.
    """

    for (view,), axes, number in leaves(spec, block, tensor):
        ends = _ends(spec, axes)
        if ends is None or ends[1].name not in anchors or ends[0].name in anchors:
            continue
        new, old = (axes.index(end) for end in ends)
        matrix = view.movedim((new, old), (0, 1)).unsqueeze(-1).flatten(2)
        taps = signs(f"{block.key} {number} taps", 1, matrix.shape[2], salt)[0].to(matrix)
        rows = anchors[ends[1].name].rows
        yield ends[0].name, Anchors(anchors[ends[1].name].names, rows @ (matrix @ taps).to(rows).mT)


def _ends(spec: Spec, axes: Sequence[Atom]) -> tuple[Atom, Atom] | None:
    """The stream that a leaf writes and the one that it reads, where nothing but their gains acts on it beside."""
    streams = [a for a in axes if a.name in spec.streams]
    acting = {a.name for a in axes if a.name in spec.spaces}
    if len(streams) != 2 or streams[0].dual == streams[1].dual or not acting <= spec.residual_names:
        return None
    new, old = sorted(streams, key=lambda a: a.dual)
    return new, old


def _through_maps(model: Model, dtype: torch.dtype, fold: Alignment, draws: Draws, salt: str) -> None:
    """Adds the anchors of streams that have no tables, from those of the streams that they begin as maps of."""
    spec, folded = model.spec, model.seen(Moved(fold))
    maps = [b for b in model.blocks if not b.scope and any(_ends(spec, leaf) for leaf in b.parts)]
    while True:
        known = {*draws[EVERY]}
        for block in maps:
            written = {ends[0].name for leaf in block.parts if (ends := _ends(spec, leaf))}
            if written <= known:
                continue
            whole = folded.assemble(block, dtype)
            for draw, anchors in draws.items():
                draws[draw] = anchors | dict(mapped_rows(spec, block, whole, anchors, salt))
        if {*draws[EVERY]} == known:
            return


def anchors_of(model: Model, dtype: torch.dtype, fold: Alignment, salt: str = "") -> tuple[Draws, dict[str, Table]]:
    """The anchors of every stream by draw, and the tables that they are from, by block.

    Where LayerNorm takes the mean away, so do they: a reader's part along the ones is idle. Where readers keep
    there what they make of a norm's bias (`isomerge.symmetry.layer_norms`), they have a mean: their size. A table
    that is the head is no reader: of its rows the head makes another thing where their means are others.

    Args:
        model: whose embeddings are read, and its gains.
        dtype: of the rows.
        fold: what folds the gains.
        salt: what the draws are made with.
    """
    spec, tables = model.spec, {}
    shared = [block for block in model.blocks if has_shared_meaning(spec, block)]
    parts: dict[str, dict[str, list[Anchors]]] = {draw: {} for draw in DRAWS}
    settled = _settled(model, shared)
    for block in shared:
        tensor = settled[block] if block in settled else model.assemble(block, None)
        for stream, rows in table_rows(spec, block, tensor):
            by_draw, tables[block.key] = drawn(block.key, rows, dtype, salt)
            for draw, anchors in by_draw.items():
                parts[draw].setdefault(stream, []).append(anchors)
    draws = {draw: {s: _joined(of_tables) for s, of_tables in streams.items()} for draw, streams in parts.items()}
    if set(draws[TOKENS]) != set(spec.streams):
        _through_maps(model, dtype, fold, draws, salt)
    opened, (heads, read) = opened_streams(model), tied_heads(model)
    scales = frozenset(a.name for line in heads for a in line.atoms) & {*model.declared.gains}
    keys = {block.key for block in shared if block.canonical[0] in read}
    for anchors in draws.values():
        for stream, seen in anchors.items():
            if (centring := spec.spaces[stream].folded == "OFixingOnes") or stream in opened:
                anchors[stream] = _without_means(seen, keys, scales, centring=centring, opened=stream in opened)
    for name, unmarked in fixed_streams(spec, model.blocks).items():
        for draw, anchors in _coordinates(name, spec.sizes[name], dtype, salt).items():
            draws[draw][name] = replace(anchors, unmarked=unmarked)
    return {draw: anchors for draw, anchors in draws.items() if anchors}, tables


def _without_means(
    anchors: Anchors, read: set[str], scales: frozenset[str], *, centring: bool, opened: bool
) -> Anchors:
    """Anchors of one stream without what they have along the ones, but for tables that are heads.

    Args:
        anchors: as they are.
        read: the tables that are heads.
        scales: of the norms that these heads read.
        centring: whether every reader's part along the ones is idle; then heads alone are shown their means.
        opened: whether readers keep something there, for which anchors have their own size.
    """
    means = anchors.rows.mean(-1, keepdim=True)
    heard = means * torch.tensor([table_of(name) in read for name in anchors.names]).to(means).unsqueeze(-1)
    rows = anchors.rows - means
    if opened:
        rows = rows + rows.square().mean(-1, keepdim=True).sqrt() + (0 if centring else heard)
    return replace(anchors, rows=rows, means=heard if centring else None, heads=scales)


def _settled(model: Model, shared: Sequence[Block]) -> Blocks:
    """The tables that trade a constant with others, after the last of them has taken it up, and what a constant may
    be added to, without it."""
    spec = model.spec.restrict([shift.name for shift in model.spec.shifts if shift.constant])
    traded = [{*parts.values()} for _, _, parts in find_shifts(spec, list(model.blocks))]
    blocks, met = {*shared}, -1
    while len(blocks) > met:  # a bias that trades with a table may have been paid by another one
        met = len(blocks)
        blocks = blocks.union(*(parts for parts in traded if not parts.isdisjoint(blocks)))
    blocks &= {block for parts in traded for block in parts}
    tensors = model.unit((block for block in model.blocks if block in blocks), torch.float64)
    fold_biases(spec, tensors)
    return tensors


def _joined(parts: Sequence[Anchors]) -> Anchors:
    """The anchors of several tables."""

    return Anchors(tuple(name for part in parts for name in part.names), torch.cat([part.rows for part in parts]))


def fixed_streams(spec: Spec, blocks: Sequence[Block]) -> dict[str, bool]:
    """The axes that no space acts on and that maps of the layers both read and write, where they have no other
    stream; and of each whether no text marks who reads it."""
    marks: dict[str, set[bool]] = {}
    behind: dict[str, set[bool]] = {}
    for block in blocks:
        block_atoms = block.atoms
        acting = [spec.spaces[a.name] for a in block_atoms if a.name in spec.spaces]
        if not block.scope or all(s.residual for s in acting) or any(a.name in spec.streams for a in block_atoms):
            continue
        for place, axis in enumerate(block.axes or ()):
            wide = [a for a in atoms((axis,)) if spec.sizes.get(a.name, 0) != 1]
            if len(wide) == 1 and wide[0].name in spec.sizes and wide[0].name not in spec.spaces:
                marks.setdefault(wide[0].name, set()).add(wide[0].dual)
                behind.setdefault(wide[0].name, set()).add(place > 0)
    both = {name: True for name, sides in behind.items() if marks[name] == {False} and len(sides) == 2}
    return both | {name: False for name, sides in marks.items() if len(sides) == 2}


def _coordinates(name: str, size: int, dtype: torch.dtype, salt: str) -> dict[str, Anchors]:
    """Some coordinates of a stream that nothing acts on, others, and sums of all; they have no lengths to tell."""

    by_draw, _ = drawn(name, torch.eye(size, dtype=dtype), dtype, salt)
    return {draw: anchors for draw, anchors in by_draw.items() if draw != LENGTHS}
