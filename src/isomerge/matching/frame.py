"""The frame of the residual stream: norm gains folded, coordinates in the anchor's basis.

Every gain of a norm can be folded into its readers: a gauge choice that keeps the architecture. A gain of ones
commutes with rotations, so that the stream may be turned. Where a stream lies shows first in what has a meaning of
its own on the other side: embeddings of tokens, positions and patches, and the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment, element_key
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import elements_of

Load = Callable[[Block], "Tensor"]
WeightedLeaf = tuple["Tensor", "Tensor", tuple[Atom, ...], float]

# A direction of a stream is known from a cross-Gram where it has this much of the largest one's: far above what
# float32 leaves of nothing.
KNOWN = 1e-5


def folded_gains(spec: Spec, blocks: Sequence[Block], load: Load) -> Alignment:
    """The residual scales that make every gain one; a zero stays zero.

    Args:
        spec: the full spec; its residual spaces are active.
        blocks: the model's blocks; a gain is a line ``diag(stream scale)``.
        load: reads one block, float32 or float64.
    """

    elements: dict[str, Tensor] = {}
    for key, block, scale in gains_over_streams(spec, blocks):
        gain = whole_gain(spec, block, scale, load(block))
        gain = torch.where(gain == 0, torch.ones_like(gain), gain)
        elements[key] = gain if scale.dual else gain.reciprocal()
    return Alignment(spec, elements)


def gains_over_streams(spec: Spec, blocks: Iterable[Block]) -> Iterator[tuple[str, Block, Atom]]:
    """The gains whose scales act: the element key of each scale, the gain, and the scale's atom, dual in a layer
    scale."""
    for block in blocks:
        atoms = block.atoms
        if any(a.diag for a in atoms):
            for atom in atoms:
                if atom.name in spec.gains:
                    yield element_key(spec, spec.spaces[atom.name], dict(block.scope)), block, atom


def whole_gain(spec: Spec, block: Block, scale: Atom, stored: Tensor) -> Tensor:
    """What a norm multiplies by, of the shape of its scale's element: float64 [*batch, 1]."""
    shape = [spec.sizes[i] for i in spec.batch(spec.spaces[scale.name])]
    return stored.double().reshape(*shape, 1) + block.line.less


def lonely_gains(spec: Spec, blocks: Sequence[Block]) -> set[str]:
    """The elements of residual scales that act on one side only: their gains have no reader among the blocks."""
    sides: dict[str, set[bool]] = {}
    for block in blocks:
        for atom in block.atoms:
            if atom.name in spec.gains:
                key = element_key(spec, spec.spaces[atom.name], dict(block.scope))
                sides.setdefault(key, set()).add(atom.dual)
    return {key for key, marks in sides.items() if len(marks) == 1}


def check_folded(spec: Spec, blocks: Sequence[Block], load: Load, ref: str) -> None:
    """Refuse a gain over what is turned with zeros that could not be opened (`isomerge.models.zero_gains`): what it
    hides cannot be turned.

    Raises:
        IsomergeError: naming the tensor.
    """
    turned = {n for n, space in spec.spaces.items() if space.is_folded}
    for block in blocks:
        if any(a.diag and a.name in turned for a in block.atoms):
            zeros = int((load(block) + block.line.less == 0).sum())
            if zeros:
                raise IsomergeError(
                    f"{ref}: tensor {block.key} has {zeros} gains that are zero beside a bias that is not, "
                    f"which cannot be "
                    "folded: choose a permutation of the residual stream, such as --spaces default,res:Perm"
                )


def is_folded_bias(spec: Spec, leaf: Sequence[Atom]) -> bool:
    """Whether a leaf is the bias of a norm whose gain has a scale, over one axis or over merged neighbours: folding
    divides it by the gain."""
    names = {a.name for a in leaf}
    scales = names & {*spec.gains}
    scaled = {index for name in scales for index in spec.spaces[name].index}
    return bool(scales) and names - scales <= scaled and not any(a.dual or a.diag for a in leaf)


def reads_once(spec: Spec, atoms: Sequence[Atom], stream: str) -> bool:
    """Whether a leaf carries the stream on one axis, as a vector, and no other stream."""
    streams = [a for a in atoms if a.name in spec.streams]
    return len(streams) == 1 and streams[0].name == stream and not streams[0].diag


def _rows(t: Tensor, at: int) -> Tensor:
    """A tensor as [n, others], the axis ``at`` first."""
    return t.movedim(at, 0).reshape(t.shape[at], -1)


def stream_crosses(spec: Spec, pairs: Iterable[WeightedLeaf]) -> dict[str, Tensor]:
    """The cross-Grams A B^T [d, d], float64, of every stream: all that its solver needs.

    Channels that meet may take another sign where a factor lies over them (a filter's): what tensors with that
    factor have in common counts by its size, as the best sign makes of it.

    Args:
        spec: the full spec.
        pairs: atom views of the anchor and of the moved source, their atoms, and how much they count; of one unit.
    """
    crosses: dict[str, Tensor] = {}
    signed: dict[tuple[str, str], Tensor] = {}
    for x, y, atoms, weight in pairs:
        for stream in spec.streams:
            if not reads_once(spec, atoms, stream):
                continue
            at = [atom.name for atom in atoms].index(stream)
            u, v = _rows(x, at), _rows(y, at)
            cross = weight * (u @ v.mT).double()
            if (factor := _signs_over(spec, atoms, stream)) is not None:
                signed[stream, factor] = signed.get((stream, factor), 0) + cross
            else:
                crosses[stream] = crosses.get(stream, 0) + cross
    for (stream, _), cross in signed.items():
        plain = crosses.get(stream, torch.zeros_like(cross))
        negative = (plain < 0) & (spec.spaces[stream].group.compact == "SignedPerm")  # the stream's own sign
        crosses[stream] = plain + torch.where(negative, -cross.abs(), cross.abs())
    return crosses


def _signs_over(spec: Spec, atoms: Sequence[Atom], stream: str) -> str | None:
    """The factor of either sign inside a layer that lies over a stream's channels in a leaf."""
    spaces = [spec.spaces[a.name] for a in atoms if a.name in spec.spaces]
    over = [s for s in spaces if not s.residual and stream in s.index and s.group.compact == "Sign"]
    return over[0].name if over else None


def streams_by_norms(spec: Spec, pairs: Iterable[WeightedLeaf], streams: Collection[str]) -> dict[str, Tensor]:
    """Permuted streams by what nothing else changes: the norms of every coordinate in every tensor, between
    canonical gauges.

    Args:
        spec, pairs: as in `stream_crosses`.
        streams: those that are wanted; rotated ones, whose coordinates have no norms of their own, are left out.
    """

    streams = [name for name in streams if spec.spaces[name].group.compact in ("Perm", "SignedPerm")]
    norms: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in streams}
    for x, y, atoms, weight in pairs:
        for stream in streams:
            if reads_once(spec, atoms, stream):
                at = [atom.name for atom in atoms].index(stream)
                a, b = _rows(x, at), _rows(y, at)
                norms[stream].append((weight**0.5 * a.double().norm(dim=1), weight**0.5 * b.double().norm(dim=1)))
    elements = {}
    for stream, rows in norms.items():
        if rows:
            apart = torch.cdist(torch.stack([a for a, _ in rows], 1), torch.stack([b for _, b in rows], 1)).square()
            near = apart.max() - apart  # nothing below zero: no signs
            elements[stream] = spec.spaces[stream].group.solve(near)[0]
    return elements


def streams_beside(spec: Spec, pairs: Iterable[WeightedLeaf], settled: Collection[str]) -> dict[str, Tensor]:
    """The cross-Grams [d, d], float64, of streams that only linear maps write and read, from those whose other side
    is known.

    Args:
        spec, pairs: as in `stream_crosses`, with the source turned by the streams that are settled.
        settled: the streams whose basis is known; of the others, those are found that meet these, or nothing, in a
            tensor (a bias).
    """
    crosses: dict[str, Tensor] = {}
    for x, y, atoms, weight in pairs:
        acting = {a.name for a in atoms} & spec.spaces.keys() - set(spec.gains)
        open_ones = acting - set(settled)
        if len(open_ones) != 1 or any(a.diag for a in atoms):
            continue
        (stream,) = open_ones
        names = [a.name for a in atoms]
        if stream not in spec.streams or names.count(stream) != 1:
            continue
        at = names.index(stream)
        u, v = _rows(x, at), _rows(y, at)
        crosses[stream] = crosses.get(stream, 0) + weight * (u @ v.mT).double()
    return crosses


def streams_by_grams(
    spec: Spec,
    leaves: Callable[[], Iterable[WeightedLeaf]],
    streams: Collection[str],
    crosses: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Rotated streams by what nothing on the other axes changes: the Grams of their coordinates, between canonical
    gauges.

    The axes of the Grams' sum are those of the stream. Which way each points, the single Grams say together, by the
    largest eigenvector of the sum of A * B, where A and B are the Grams of both models along these axes: up to the
    sign of all, unless a cross-Gram tells.

    Args:
        spec: the full spec.
        leaves: gives the leaves of `stream_crosses`, each time anew.
        streams: those that are wanted; permuted ones are left out (`streams_by_norms`).
        crosses: cross-Grams of `streams_beside`, of streams of which these do not tell all.
    """

    streams = [name for name in streams if spec.spaces[name].group.compact in ("O", "OFixingOnes")]
    sums: dict[str, Tensor] = {}
    for stream, a, b in _grams(leaves(), streams):
        sums[stream] = sums.get(stream, 0) + torch.stack([a, b])
    axes = {name: torch.linalg.eigh(both)[1] for name, both in sums.items()}
    agreeing: dict[str, Tensor] = {}
    for stream, a, b in _grams(leaves(), list(axes)):
        u, v = axes[stream]
        agreeing[stream] = agreeing.get(stream, 0) + (u.mT @ a @ u) * (v.mT @ b @ v)
    elements = {}
    for stream, alike in agreeing.items():
        u, v = axes[stream]
        signs = _signs(alike, (u.mT @ crosses[stream] @ v).diag() if crosses and stream in crosses else None)
        elements[stream] = spec.spaces[stream].group.solve((u * signs) @ v.mT)[0]
    return elements


def _signs(alike: Tensor, known: Tensor | None) -> Tensor:
    """The signs s [d] for which the sum of s_i s_j alike_ij is large, and that of s_i known_i."""

    joint = alike.new_zeros((len(alike) + 1,) * 2)
    joint[1:, 1:] = alike - alike.diag().diag()
    if known is not None and known.abs().max() > 0:
        joint[0, 1:] = joint[1:, 0] = known * (joint.abs().max() / known.abs().max())
    signs = torch.where(torch.linalg.eigh(joint)[1][:, -1] < 0, -1.0, 1.0)
    return (signs[1:] * signs[0]).to(alike.dtype)


def unknown_directions(cross: Tensor) -> int:
    """The directions of a stream that a cross-Gram says nothing of."""
    return len(cross) - int(torch.linalg.matrix_rank(cross, rtol=KNOWN))


def _grams(leaves: Iterable[WeightedLeaf], streams: Sequence[str]) -> Iterable[tuple[str, Tensor, Tensor]]:
    """Streams, and the Grams [d, d], float64, of their coordinates in each tensor of both models."""
    for x, y, atoms, weight in leaves:
        names = [a.name for a in atoms]
        for stream in streams:
            if names.count(stream) == 1 and not atoms[at := names.index(stream)].diag:
                a, b = _rows(x.double(), at), _rows(y.double(), at)
                yield stream, weight * a @ a.mT, weight * b @ b.mT


def streams_alone(spec: Spec, blocks: Iterable[Block]) -> set[str]:
    """The streams that have no embedding or head of their own, from which a search could start."""
    shared = [block.atoms for block in blocks if has_shared_meaning(spec, block)]
    return {name for name in spec.streams if not any(reads_once(spec, atoms, name) for atoms in shared)}


def has_shared_meaning(spec: Spec, block: Block, *, vectors: bool = False) -> bool:
    """Whether nothing but streams and their scales acts on a block outside the layers: embeddings and heads.

    ``vectors``: biases of norms as well, which say where logits begin, and of a stream's basis no more than one
    direction.
    """
    acting = {space.name for space in elements_of(spec, block).values()}
    names = [a.name for a in block.atoms if vectors or a.name not in spec.gains]
    return not block.scope and bool(acting & set(spec.streams)) and acting <= spec.residual_names and len(names) > 1
