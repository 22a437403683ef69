"""What LayerNorm itself leaves free: who writes a stream that every norm centres, and who reads each norm.

LayerNorm takes the mean of a stream away, divides by its size, multiplies by gains g and adds biases b. So no
output depends on what writers put along the ones, nor on what its readers W take against them, ``W + c (1/g)^T``
with ``c sum(b/g)`` off their own bias; and b itself may as well stand in the readers' biases as ``W b``. A reader
without a bias has one all the same, in what it takes against the ones of b: as long as ``W b`` is what it was, both
may be anything.

Where norms stand behind what they normalise (`isomerge.symmetry.post_norms`), the stream carries b on, and the next
writer's bias takes it up, or values, through the output that they are written by (`isomerge.symmetry.unheard`), or
of what lies along the ones the next norm; and the gains of the last norm may as well stand in its readers,
``W diag(g)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.symmetry.axes import Atom, Concat, atoms, leaf_atoms, length, views
from isomerge.symmetry.bases import bases_in
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import carried
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.norms import LayerNorms, Norm, TiedTrade
from isomerge.symmetry.post_norms import Order, Place, depth_of, generic, is_last, order_of
from isomerge.symmetry.reached import reached_in
from isomerge.symmetry.stage import FIXED, element_key
from isomerge.symmetry.unheard import Unheard
from isomerge.symmetry.unstored_biases import bias_of, unstored_biases

NORMS = "norms"
"""What this freedom is called among spaces."""
CENTRED = "OFixingOnes"
"""The group that a stream is turned by where every norm over it takes the mean away."""


def layer_norms(
    spec: Spec,
    blocks: Sequence[Block],
    *,
    returned: Collection[str] = (),
    states: bool = False,
    tied: Callable[[Block], bool] = lambda block: False,
) -> LayerNorms:
    """What LayerNorm leaves free in some blocks.

    Args:
        spec: with its residual streams and gains active, before ties have taken any.
        blocks: of a model, or of one unit.
        returned: streams that a model gives out: what is written stays, and what their last norm makes of it.
        states: whether a model gives out what every layer makes of its streams.
        tied: whether a table of embeddings is the head as well: then its rows are read, too.
    """
    free, reached = LayerNorms(), reached_in(spec, blocks, states=states)
    passing = {
        statement.gain: statement for statement in reached if isinstance(statement, Unheard) and statement.passes
    }
    for stream in centred_streams(spec):
        plainly = stream in spec.prenorm and stream not in spec.plain and _needs_order(spec, stream)
        ordered = stream in spec.postnorm or plainly
        last = stream in returned
        seen = _Seen(last, states and last, normed=last and stream not in spec.within)
        if ordered:
            of_stream = _under_ordered_norms(spec, blocks, stream, seen, tied, passing)
        else:
            of_stream = _under_pre_norms(spec, blocks, stream, seen, tied)
        free = LayerNorms(free.writers | of_stream.writers, free.norms + of_stream.norms)
    heard = [
        statement
        for statement in reached
        if isinstance(statement, Unheard) and statement.out.block not in free.writers
    ]
    return replace(
        free,
        carried=[] if states else carried(spec, blocks),
        reached=[statement for statement in reached if statement not in heard],
        bases=[statement for statement in bases_in(spec, blocks) if statement.table is not None],
    )


@dataclass(frozen=True)
class _Seen:
    """What of a stream a model gives out."""

    last: bool
    states: bool
    normed: bool
    """Whether also what its last norm makes of it."""


def centred_streams(spec: Spec) -> list[str]:
    """The streams that every norm over them takes the mean of, and the latents inside of layers."""
    streams = (*spec.streams, *spec.normed_latents)
    groups = {name: (spec.spaces[name].group_name, spec.spaces[name].folded) for name in streams}
    centred = [name for name, both in groups.items() if CENTRED in both or name in spec.prenorm + spec.postnorm]
    return [name for name in centred if name not in spec.seen_raw or name in spec.postnorm]


def under_layer_norm(spec: Spec) -> bool:
    """Whether some stream is under LayerNorm alone, or what a weight writes is scaled afterwards."""
    return bool(centred_streams(spec)) or any(length.stored is None for length in spec.lengths)


def _under_pre_norms(
    spec: Spec, blocks: Sequence[Block], stream: str, seen: _Seen, tied: Callable[[Block], bool]
) -> LayerNorms:
    """The writers and norms of one stream, where it is read through norms alone."""
    plain, norms = stream in spec.plain, dict[str, Norm]()
    mixed: set[str] = set()
    writers: dict[Block, int] = {}
    merging = False
    outer = {gain for gain in spec.gains_over(stream) if not spec.scope(spec.spaces[gain])}
    branch = {s.name for block in blocks for s in _scales(spec, block, stream) if s.dual and s.diag}
    layer_scales: dict[str, Norm] = {}
    for block, k, atom, scales in _places(spec, blocks, stream):
        if scales is None and _reads_normed_parts(spec, block, k):
            for scale in _scales(spec, block, stream):
                norms.setdefault(
                    element_key(spec, spec.spaces[scale.name], dict(block.scope)), Norm()
                ).sealed = True
            continue
        if scales is None:  # a part of a concatenation, or other axes beside it: not known here
            return LayerNorms()
        merging |= not block.names_by_axis[k].isdisjoint(_merged(spec, scales))
        if scales and scales[0].name in branch:
            key = element_key(spec, spec.spaces[scales[0].name], dict(block.scope))
            _add_to_layer_scale(layer_scales.setdefault(key, Norm()), block, k, atom)
            continue
        aside = spec.says("except", block.line, stream)
        if plain and atom.dual:
            held = aside or (seen.normed and not block.layers)
            norms[block.key] = Norm(readers={} if held else {block: k}, plain=True)
            continue
        key = element_key(spec, spec.spaces[scales[0].name], dict(block.scope)) if scales else ""
        norm = norms.setdefault(key, Norm()) if key else None
        if atom.diag and norm is not None:
            norm.gain = block
        elif atom.dual and not scales and not block.line.tied:
            return LayerNorms()  # read without a norm
        elif atom.dual and norm is not None and aside:
            norm.sealed = True
        elif atom.dual and norm is not None:
            norm.readers[block] = k
            if parts := spec.parts_apart(stream, block.line):
                norm.apart[block] = _rows_of(spec, block, k, parts)
        elif not atom.dual and norm is not None and not aside:
            if norm.bias is not None:  # something more is added to what the norm gives
                mixed.add(key)
            norm.bias = block
        elif not atom.dual and not atom.diag and not scales and not tied(block) and not aside:
            writers[block] = k
    if merging:  # the mean of several tokens is not each one's
        first = _before_layers(spec, stream)
        writers = {block: k for block, k in writers.items() if block.line in first}
    for key, norm in norms.items():
        norm.sealed |= seen.normed and ElementKey.of(key).name in outer
    kept = [norm for key, norm in norms.items() if key not in mixed]
    _add_biases(spec, kept, blocks, writers)
    writers = {} if stream in spec.within else _unseen(spec, stream, seen, writers)
    if not _is_seen_raw(spec, stream, seen):
        kept += [norm for norm in layer_scales.values() if norm.gain is not None]
    return LayerNorms(writers, [norm for norm in kept if (norm.gain is not None or norm.plain) and norm.readers])


def _reads_normed_parts(spec: Spec, block: Block, k: int) -> bool:
    """Whether an axis is a concatenation of what norms give, such as a token's and the mean of all others."""
    axis = (block.axes or ())[k]
    return isinstance(axis, Concat) and all(
        all(a.dual for a in part) and any(a.name in spec.gains for a in part) for part in leaf_atoms((axis,))
    )


def _add_to_layer_scale(norm: Norm, block: Block, k: int, atom: Atom) -> None:
    """A layer scale, or what it multiplies: W diag(g) is written, so that W + (1/g) c^T writes along the ones. That
    is what a reader behind a gain may have, and what has no tensor for its bias."""
    if atom.diag:
        norm.gain = block
    else:
        norm.readers[block] = k


def _is_seen_raw(spec: Spec, stream: str, seen: _Seen) -> bool:
    """Whether a class returns a stream before a norm takes its mean away."""
    return seen.states or (seen.last and stream not in spec.normed_out)


def _unseen(spec: Spec, stream: str, seen: _Seen, writers: dict[Block, int]) -> dict[Block, int]:
    """The writers of which a norm takes the mean away before a class returns anything."""
    if not _is_seen_raw(spec, stream, seen):
        return writers
    first = _before_layers(spec, stream)
    return {block: k for block, k in writers.items() if block.line in first}


def _before_layers(spec: Spec, stream: str) -> list[Line]:
    """The lines of a stream that a norm outside of layers reads before these do; none without such a norm."""
    lines: list[Line] = []
    for line in spec.lines:
        if line.indices and stream in line.names:
            return []
        if any(a.name == stream and a.diag for a in line.atoms):
            return lines if line.names.isdisjoint(spec.gains) else []
        lines.append(line)
    return []


def _add_biases(spec: Spec, norms: Sequence[Norm], blocks: Sequence[Block], writers: Collection[Block]) -> None:
    """The biases of what reads norms."""
    by_name = {block.canonical[0]: block for block in blocks if not block.lead}
    for norm in norms:
        paying = {block: k for block, k in norm.readers.items() if not spec.says("padded", block.line)}
        for block, k in paying.items():
            bias = by_name.get(bias_of(block.canonical[0]))
            rest = tuple(axis for i, axis in enumerate(block.axes or ()) if i != k)
            tiled = spec.says("tiled", block.line)
            fits = bias is not None and bias.axes == (rest[: len(bias.axes or ())] if tiled else rest)
            if bias is not None and fits and not block.lead and bias not in writers:
                norm.reader_biases[bias] = block
                norm.tiled |= {block} if tiled else set()
            elif bias is None and not block.lead:
                _add_shares(spec, norm, block, k, [b for b in blocks if b.scope == block.scope and not b.lead])
        bare = {block: k for block, k in paying.items() if block not in norm.biased}
        norm.unstored = unstored_biases(spec, bare, blocks)


def _add_shares(spec: Spec, norm: Norm, reader: Block, axis: int, blocks: Sequence[Block]) -> None:
    """The biases of some parts of a reader, as a spec says (`Spec.biased`)."""
    mine = [(number, name) for line, number, name in spec.biased if line == reader.line.name]
    named = {block.line.name: block for block in blocks}
    if not mine or not all(name in named for _, name in mine):
        return
    norm.reader_biases |= {named[name]: reader for _, name in mine}
    wanted = {number: name for number, name in mine if number is not None}
    if not wanted:
        return
    norm.bare[reader] = ~_rows_of(spec, reader, axis, wanted)
    for number, name in wanted.items():
        norm.shares[named[name]] = _rows_of(spec, reader, axis, [number]).nonzero().flatten()


def _rows_of(spec: Spec, reader: Block, axis: int, parts: Collection[int]) -> Tensor:
    """Which rows of a reader are of some parts of a concatenation: bool, in flat order."""
    rest = tuple(a for i, a in enumerate(reader.axes or ()) if i != axis)
    rows = torch.zeros([length(a, spec.sizes) for a in rest], dtype=torch.bool)
    for number, ((part,), _) in enumerate(views((rows,), rest, spec.sizes)):
        if number in parts:
            part.fill_(True)
    return rows.flatten()


def _needs_order(spec: Spec, stream: str) -> bool:
    """Whether a line reads a stream without the scale of a norm, or without the stream's axes."""
    if any(name == stream and word in ("seen", "sliced") for name, word, _ in spec.beside):
        return True
    gains = spec.gains_over(stream)
    for line in (line for line in spec.lines if not line.tied):
        for axis in line.axes or ():
            axis_atoms = list(atoms((axis,)))
            if any(a.name == stream and a.dual for a in axis_atoms) and not any(
                a.name in gains for a in axis_atoms
            ):
                return True
    return False


def _under_ordered_norms(
    spec: Spec,
    blocks: Sequence[Block],
    stream: str,
    seen: _Seen,
    tied: Callable[[Block], bool],
    passing: Mapping[Block, Unheard],
) -> LayerNorms:
    """The writers and norms of one stream, where the order of lines says what reads which norm, and what values
    take up of biases that the stream carries on. Where a class returns the stream, its last norm's output stays."""
    order = order_of(spec, stream)
    if order.raw:
        return LayerNorms()
    norms: dict[str, Norm] = {}
    writers: dict[Block, int] = {}
    by_key = {block.key: block for block in blocks}
    by_name = {block.canonical[0]: block for block in blocks}

    def norm_at(place: Place | None, layer: int | None) -> Norm | None:
        key = place and place.key(depth_of(spec, place.line), layer)
        if (gain := by_key.get(key or "")) is None:
            return None
        bias, shown = by_name.get(bias_of(gain.canonical[0])), _is_seen(spec, order, gain, seen)
        return norms.setdefault(gain.key, Norm(gain, bias, sealed=shown))

    for block, k, atom, scales in _places(spec, blocks, stream):
        at = (block.line.name, not any(block.layers))
        aside = spec.says("except", block.line, stream)
        if at in order.writes and not atom.dual and scales == [] and not tied(block) and not aside:
            writers[block] = k
            if (norm := norm_at(order.adds.get(at), block.layers[0] if block.layers else None)) is not None:
                norm.onward = block
        place = order.reads.get(at) if atom.dual else order.carries.get(at)
        norm = norm_at(place, block.layers[0] if block.layers else None)
        if norm is None:
            continue
        if scales is None or (aside and atom.dual):
            norm.sealed = True
        elif atom.dual:
            norm.readers[block] = k
        else:
            norm.carried = block
    for block in (block for block in blocks if spec.says("sliced", block.line, stream)):
        place = order.reads.get((block.line.name, not any(block.layers)))
        norm = norm_at(place, block.layers[0] if block.layers else None)
        if norm is not None and len(block.axes or ()) > 1:
            norm.add_slices(block, by_name.get(bias_of(block.canonical[0])))
    _add_biases(spec, list(norms.values()), blocks, writers)
    stored, aliases = {block.line for block in blocks}, [line for line in spec.lines if line.tied]
    for line in aliases:
        norm = norm_at(order.reads.get((line.name, True)), None)
        if norm is not None and spec.says("except", line, stream):
            norm.sealed = True
        elif line not in stored and norm is not None:
            _add_tied(norm, line, by_name, aliases)
            norm.tied_trades = list(_tied_trades(spec, norm, blocks))
    kept = order.kept(lambda line: depth_of(spec, line))
    for norm in norms.values():
        assert norm.gain is not None
        norm.sealed |= norm.gain.key in kept
        last = is_last(spec, order, norm.gain)
        norm.sealed |= stream in spec.again and last and bool(norm.gain.layers)
        if order.before:
            norm.sealed |= norm.gain.line.name in order.begins
        else:
            norm.carry_on(passing.get(norm.gain), last=last)
            norm.sealed |= (not norm.goes_on and not last) or (
                last and order.read_elsewhere and bool(norm.gain.layers)
            )
        norm.ends = last and norm.gain.names.isdisjoint(spec.gains)
    if order.before:
        read = {norm.bias for norm in norms.values()}
        first = {bias_of(name) for name in order.begins}
        writers |= {by_name[name]: 0 for name in first if name in by_name and by_name[name] not in read}
        beside = replace(seen, states=seen.states or stream in spec.within)
        writers = _unseen(spec, stream, beside, writers)
    return LayerNorms(writers, [norm for norm in norms.values() if norm.readers or norm.sliced])


def _add_tied(norm: Norm, line: Line, by_name: Mapping[str, Block], aliases: Sequence[Line]) -> None:
    """A reader that is a table of embeddings: the norm's bias folds through it into the head's, if it is one
    tensor."""
    table = by_name.get(line.tied or "")
    name = bias_of(line.canonical({}))
    names = {name, *(alias.tied for alias in aliases if alias.canonical({}) == name)}
    biases = [by_name[each] for each in names if each in by_name]
    if table is None or len(biases) != 1:
        norm.sealed = True
        return
    norm.readers[table] = len(table.axes or ()) - 1
    norm.bound.add(table)
    norm.reader_biases[biases[0]] = table


def _tied_trades(spec: Spec, norm: Norm, blocks: Sequence[Block]) -> Iterator[TiedTrade]:
    """What the table that reads a norm trades with others, where all three tensors are there."""
    named = {block.line.name: block for block in blocks if not block.layers and not block.lead}
    biases = {reader: bias for bias, reader in norm.reader_biases.items() if reader in norm.bound}
    for trade in spec.tied_trades:
        table, partner = named.get(trade.bias), named.get(trade.into or "")
        if norm.gain is None or trade.against != norm.gain.line.name or table not in biases or partner is None:
            continue
        yield TiedTrade(table, partner, biases[table], trade.rows or (0, None), trade.into_rows or (0, None))


def _is_seen(spec: Spec, order: Order, gain: Block, seen: _Seen) -> bool:
    """Whether a model gives out what a norm makes of a stream."""
    if gain.line.name in order.heads:
        return False
    if order.before:
        return seen.normed and gain.line.name in order.lasts
    state = not gain.layers or order.ends.get(spec.stack_of(gain.line)) == generic(gain.line)
    return (seen.states and state) or (seen.last and is_last(spec, order, gain))


Standing = tuple[Block, int, Atom, "list[Atom] | None"]


def _places(spec: Spec, blocks: Sequence[Block], stream: str) -> Iterator[Standing]:
    """Where a stream stands: block, axis, its atom, and the scales beside it; None where that is not all."""
    gains = spec.gains_over(stream)
    for block in (block for block in blocks if not spec.says("without", block.line, stream)):
        for k, axis in enumerate(block.axes or ()):
            wide = [a for a in atoms((axis,)) if a.name in spec.spaces or spec.sizes.get(a.name) != 1]
            mine = [a for a in wide if a.name == stream]
            if not mine:
                continue
            scales = [a for a in wide if a.name in gains]
            beside = _merged(spec, scales) if len(scales) == 1 else ()
            rest = [a for a in wide if a not in mine and a not in scales and a.name not in beside]
            alone = len(mine) == 1 and len(scales) < 2 and not rest
            yield block, k, mine[0], scales if alone and not isinstance(axis, Concat) else None


def _merged(spec: Spec, scales: Sequence[Atom]) -> list[str]:
    """What a norm sees beside a stream as one vector, such as the neighbours that Swin merges: what its gains have
    elements for, within a tensor."""
    return [name for scale in scales for name in spec.batch(spec.spaces[scale.name]) if name not in spec.spaces]


def _scales(spec: Spec, block: Block, stream: str) -> list[Atom]:
    gains = spec.gains_over(stream)
    return [a for a in block.atoms if a.name in gains] if stream in block.names else []


def norm_spec(spec: Spec) -> Spec:
    """The spec with streams and gains alone, the streams fixed: what moves of LayerNorms know. Beside another spec,
    streams are what they are there (`isomerge.symmetry.stage.joined`)."""
    biases = [shift.name for shift in spec.shifts if not shift.constant]  # of biases that are not stored
    held, centred = (*spec.streams, *spec.normed_latents), centred_streams(spec)
    gains = {gain for name in held for gain in spec.gains_over(name)}
    restricted = spec.restrict([*held, *gains, *biases])
    fixed = {
        name: replace(spec.spaces[name], group_name=FIXED, folded=CENTRED if name in centred else None)
        for name in held
    }
    return replace(restricted, spaces={**restricted.spaces, **fixed})
