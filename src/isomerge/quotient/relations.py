"""Relations of a model: products of its weights in which no coordinate is left.

A contraction of two tensors over an axis is invariant where the two ends are dual (``isomerge.symmetry.axes``), or where what
acts keeps lengths. What contracts so are the circuits of a layer: ``W_Q^T W_K``, ``W_O W_V``, the products of an MLP. Their
last axes lie in the residual stream; there the rows of the embeddings of fixed tokens, positions or patches stand (*anchors*,
which turn as the stream does), so that ``Z W_Q^T W_K Z^T`` is the same number whatever the basis (Francois and Ravera 2026;
Zeng et al. 2024, HuRef). Nothing is solved and nothing is balanced: it is as exact as products are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from isomerge.quotient.anchors import Anchors
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Leaf:
    """A leaf with its stream axes replaced by anchors."""

    block: Block
    data: Tensor
    atoms: tuple[Atom, ...]
    """One per dimension; ``@1`` (and ``@2``) is an axis of anchors."""
    reads: bool
    """Whether it reads the stream."""
    streams: tuple[str, ...] = ()
    """The stream of every axis of anchors."""

    @property
    def end(self) -> str:
        """What it does to the stream: ``r`` reads it, ``w`` writes it, ``b`` neither."""
        return "b" if len(self.inner) == len(self.atoms) else "r" if self.reads else "w"

    @property
    def inner(self) -> dict[str, Atom]:
        """The axes that are not anchors."""
        return {a.name: a for a in self.atoms if not a.name.startswith("@")}


@dataclass(frozen=True)
class Related:
    """One relation."""

    data: Tensor
    ends: tuple[str, ...]
    """The stream whose anchors stand along every dimension; of what no anchor stands along, none."""


def relations(
    spec: Spec, tensors: Mapping[Block, Tensor], anchors: Mapping[str, Anchors]
) -> dict[tuple[str, str], Related]:
    """The relations of one unit, by the block that they are first found at and what they relate.

    Args:
        spec: the full spec.
        tensors: the unit's blocks with gains folded and free biases moved (where folding is possible).
        anchors: of every stream.

    Returns:
        (block key, kind) -> a tensor [anchors, anchors], [anchors] or [] with the streams of its ends. A kind is the role of the space that is contracted
        and what stands at its two ends: ``r`` reads the stream, ``w`` writes it, ``b`` is a bias; ``qk:rr``, ``ov:rw``. The
        product of a tensor with itself has one end and a square: ``ff:r2``.
    """
    found: dict[tuple[str, str], Related] = {}
    seen = [
        leaf
        for block, tensor in tensors.items()
        for (view,), atoms, _ in leaves(spec, block, tensor)
        if (leaf := _anchored(spec, block, view, atoms, anchors)) is not None
    ]
    for k, one in enumerate(seen):
        if one.streams and (not one.inner or len(one.streams) == 2):
            # a gain or a bias; a convolution along the stream, whose products with itself have four ends
            found[one.block.key, "stream"] = Related(one.data, one.streams)
            continue
        for other in seen[k:]:
            if other is not one and one.end == other.end == "b":
                continue  # one number, which may be a difference of large ones
            if _invariant(spec, one.inner, other.inner):
                key, value = _kind(spec, one, other), _contract(one, other)
                # attention between several streams: what has other ends does not add up
                places = product((key, *(f"{key} {n}" for n in range(2, 9))), (one.block.key, other.block.key))
                free = next((k, kind) for kind, k in places if (k, kind) not in found)
                ends = one.streams + other.streams
                alike = (at for at, x in found.items() if at[1].split()[0] == key and x.ends == ends)
                place = next(alike, free)
                found[place] = Related(found[place].data + value if place in found else value, ends)
    return found


def _anchored(
    spec: Spec, block: Block, view: Tensor, atoms: tuple[Atom, ...], anchors: Mapping[str, Anchors]
) -> _Leaf | None:
    """A leaf with anchors in place of streams; None where a stream has none."""
    import torch

    reads, ends = False, ()
    for at, atom in enumerate(atoms):
        if atom.name not in anchors:
            if atom.name in spec.streams:
                return None
            continue
        rows, ends = anchors[atom.name].rows, (*ends, atom.name)
        if atom.diag:  # a gain that stays: the matrix that it is the diagonal of
            gains = (
                (view + block.line.less).movedim(at, -1).reshape(-1, view.shape[at]).sum(0)
            )  # of layers along an axis
            view = (rows * gains) @ rows.mT
            return _Leaf(block, view, (Atom("@1"), Atom("@2")), reads=False, streams=ends * 2)
        view = torch.matmul(view.movedim(at, -1), rows.mT).movedim(-1, at)
        atoms = (*atoms[:at], Atom(f"@{len(ends)}"), *atoms[at + 1 :])
        reads = reads or atom.dual
    # axes of length one: scales of gains, which are folded, and those that this model does not have
    gone = {*spec.gains, *(n for n, size in spec.sizes.items() if size == 1 and n not in spec.spaces)}
    kept = [at for at, a in enumerate(atoms) if a.name not in gone]
    view = view.reshape([view.shape[at] for at in kept])
    return _Leaf(block, view, tuple(atoms[at] for at in kept), reads, ends)


def _invariant(spec: Spec, one: Mapping[str, Atom], other: Mapping[str, Atom]) -> bool:
    """Whether the contraction of two leaves over all but their anchors is the same on the whole orbit."""
    if not set(one) & set(other):
        return False
    for name in {**one, **other}:
        both = name in one and name in other
        space = spec.spaces.get(name)
        if space is not None and not space.keeps_lengths:
            if not both or one[name].dual == other[name].dual:
                return False
        elif not both and (space is None or space.group.compact != "Perm"):
            return False  # sums over an axis are invariant where it is permuted, and nowhere else
    return True


def _contract(one: _Leaf, other: _Leaf) -> Tensor:
    """The sum over all axes but the anchors'."""
    import torch

    letters = {name: chr(ord("a") + k) for k, name in enumerate({**one.inner, **other.inner})}
    ends = iter("WXYZ")
    terms, out = [], ""
    for leaf in (one, other):
        term = ""
        for atom in leaf.atoms:
            letter = letters.get(atom.name) or next(ends)
            term, out = term + letter, out + (letter if atom.name not in letters else "")
        terms.append(term)
    return torch.einsum(f"{terms[0]},{terms[1]}->{out}", one.data, other.data)


def _kind(spec: Spec, one: _Leaf, other: _Leaf) -> str:
    """The role of what is contracted, and the two ends."""
    names = [n for n in spec.ordered if n in one.inner and n in other.inner]
    if not names:
        return "table:2" if one is other else "table"
    tight = [n for n in names if not spec.spaces[n].keeps_lengths]
    deepest = (tight or names)[-1]
    ends = "".join(sorted(leaf.end for leaf in (one, other)))
    return f"{spec.spaces[deepest].role or deepest}:{one.end + '2' if one is other else ends}"
